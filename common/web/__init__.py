"""Rules of the web: canonical URLs, pages, scope, robots.txt, retries. Pure: no I/O, clock, chance."""
