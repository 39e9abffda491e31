"""The native engine: namespaces, overlay mounts and a seccomp filter, made by a small process called the nursery."""
