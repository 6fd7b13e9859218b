"""One module a command (or a group of them), imported only when it is called."""
