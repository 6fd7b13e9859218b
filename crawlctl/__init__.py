"""The command line of crawlctl: reads what the user wants, calls what does it, shows the answer."""
