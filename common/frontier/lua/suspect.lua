-- suspect: the owner writes anew how many owners a claim's URL has outlived, before it is tried alone and after.
-- @use _guard _hosts
-- KEYS[1] meta hash       KEYS[2] slots zset      KEYS[3] slot hash   KEYS[4] in_flight hash
-- ARGV[1] layout version  ARGV[2] server run      ARGV[3] token       ARGV[4] claim   ARGV[5] item
-- ARGV[6] ms until its request is surely over
-- Returns {OK, 1 = written; 0 = the claim is gone, or its slot is over} | STALE MISSING VERSION RUN
-- Invariants: it may be sent for some time from now on, as after a claim, and its slot lasts accordingly. One
--   whose slot is over is not written: others may use the host by now.
local refusal = owner_refusal(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if refusal then return refusal end
local claim = ARGV[4]
local entry = redis.call('HGET', KEYS[4], claim)
if not entry or redis.call('HEXISTS', KEYS[3], claim) == 0 then return { 'OK', 0 } end
local owner, host = parse_in_flight(entry)
if owner ~= ARGV[3] then return { 'OK', 0 } end
redis.call('HSET', KEYS[4], claim, owner .. '\n' .. host .. '\n' .. ARGV[5])
redis.call('ZADD', KEYS[2], 'XX', 'GT', now_ms(KEYS[1]) + tonumber(ARGV[6]), claim)
return { 'OK', 1 }
