"""How results leave: formats, where they are written to, reading from the beginning or as a group.

``formats`` and ``parquet`` turn records into bytes; ``reading`` brings them, once or as they come;
``targets`` are standard output and files; ``consuming`` reads as a consumer group.
"""
