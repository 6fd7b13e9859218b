-- commit: the owner finishes claims: result record out, claim gone, host's next time set, counters moved.
-- @use _guard _hosts
-- KEYS[1] meta hash  KEYS[2] ready zset   KEYS[3] pace zset       KEYS[4] slots zset    KEYS[5] slot hash
-- KEYS[6] busy hash  KEYS[7] in_flight    KEYS[8] results stream  KEYS[9] dead hash     KEYS[10] pages hash
-- KEYS[11] errors hash                    KEYS[12] rules hash     KEYS[13..] queues of the hosts concerned
-- ARGV[1] layout version  ARGV[2] server run  ARGV[3] token  ARGV[4] 1 = count pages per host
-- ARGV[5] links refused since the last commit, as JSON {rule: count} ('' = none; not counted again where every
--   claim is gone)
-- then per claim: claim, host, queue index, ms since the response ended (-1: no request), delay ms,
--   outcome (a counter's name), result record (JSON), dead letter ('' = none)
-- Returns {OK, {claims that were gone}} | STALE MISSING VERSION RUN
-- Invariants: every outlink was offered, and answered OK, before this call. A claim that is gone was
--   committed by an earlier copy of this call, or was requeued: its record is not written.
local refusal = owner_refusal(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if refusal then return refusal end
local refused = ARGV[5] ~= '' and cjson.decode(ARGV[5])
local now, moved = now_ms(KEYS[1]), {}
local mine, gone, done = take_in_flight(KEYS[7], ARGV[3], 6, 8)
for at = 6, #ARGV, 8 do
  local claim, host, outcome = ARGV[at], ARGV[at + 1], ARGV[at + 5]
  if mine[claim] then
    mine[claim] = nil
    local id = redis.call('XADD', KEYS[8], '*', 'r', ARGV[at + 6])
    if ARGV[at + 7] ~= '' then
      redis.call('HSET', KEYS[9], host .. '\n' .. claim, id .. '\n' .. ARGV[at + 7])
    end
    if ARGV[4] == '1' and (outcome == 'fetched' or outcome == 'not_modified') then
      redis.call('HINCRBY', KEYS[10], host, 1)
    end
    if outcome == 'failed' or outcome == 'dead' then redis.call('HINCRBY', KEYS[11], host, 1) end
    moved[outcome] = (moved[outcome] or 0) + 1
  end
end
end_claims(KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], 12, 6, 8, now)
for outcome, count in pairs(moved) do redis.call('HINCRBY', KEYS[1], outcome, count) end
if done > 0 then redis.call('HINCRBY', KEYS[1], 'in_flight', -done) end
if refused and (done > 0 or #gone == 0) then
  for rule, count in pairs(refused) do
    redis.call('HINCRBY', KEYS[1], 'filtered', count)
    redis.call('HINCRBY', KEYS[12], rule, count)
  end
end
return { 'OK', gone }
