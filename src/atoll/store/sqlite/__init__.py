"""A store in an SQLite database, in the state directory of the machine that it is on."""
