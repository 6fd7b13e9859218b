"""Plain values: ids, job specs, records, counters, errors. No I/O, no clocks, no randomness."""
