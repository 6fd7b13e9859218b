-- sitemap: the owner finishes claims of sitemaps. They are no pages: they leave the ledger of URLs they were
-- in while they waited, no record is exported, and what became of them is kept beside it.
-- @use _guard _hosts
-- KEYS[1] meta hash  KEYS[2] ready zset   KEYS[3] pace zset       KEYS[4] slots zset    KEYS[5] slot hash
-- KEYS[6] busy hash  KEYS[7] in_flight    KEYS[8] sitemaps hash   KEYS[9..] queues of the hosts concerned
-- ARGV[1] layout version  ARGV[2] server run  ARGV[3] token
-- then per claim: claim, host, queue index, ms since the response ended (-1: no request), delay ms, URL, what
--   became of it (JSON)
-- Returns {OK, {claims that were gone}} | STALE MISSING VERSION RUN
-- Invariants: all it names was offered, and answered OK, before this call. discovered + refilled, by which the
--   end of a job is judged, never shrinks.
local refusal = owner_refusal(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if refusal then return refusal end
local mine, gone, done = take_in_flight(KEYS[1], KEYS[7], ARGV[3], 4, 7)
for at = 4, #ARGV, 7 do
  if mine[ARGV[at]] then redis.call('HSET', KEYS[8], ARGV[at + 5], ARGV[at + 6]) end
end
end_claims(KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], 8, 4, 7, now_ms(KEYS[1]))
if done > 0 then
  redis.call('HINCRBY', KEYS[1], 'in_flight', -done)
  redis.call('HINCRBY', KEYS[1], 'discovered', -done)
  redis.call('HINCRBY', KEYS[1], 'refilled', done)
  redis.call('HINCRBY', KEYS[1], 'sitemaps', done)
end
return { 'OK', gone }
