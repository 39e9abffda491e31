"""Facts of the CPU: numbers of system calls and machine code, for each machine that sandboxes can be made on."""
