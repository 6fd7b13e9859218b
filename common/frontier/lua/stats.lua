-- stats: one atomic look at a shard: its meta hash, staged seed chunks, distinct offers.
-- @flags allow-oom
-- KEYS[1] meta hash  KEYS[2] staged hash  KEYS[3] hll
-- Returns {meta as field, value, ..., staged chunks, distinct offers}; an empty meta = no such shard
return { redis.call('HGETALL', KEYS[1]), redis.call('HLEN', KEYS[2]), redis.call('PFCOUNT', KEYS[3]) }
