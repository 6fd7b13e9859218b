"""Rules of the web: URLs, pages, scope, robots.txt, retries. Pure: no I/O, clock or chance."""
