-- dead_retry: the command line puts dead letters back, each to the end of its host's queue.
-- @use _guard _hosts
-- KEYS[1] meta hash  KEYS[2] ready zset  KEYS[3] pace zset  KEYS[4] busy hash  KEYS[5] dead hash
-- KEYS[6] results stream  KEYS[7] errors hash    KEYS[8] due zset    KEYS[9] visited hash
-- KEYS[10..] queues of the hosts concerned
-- ARGV[1] layout version  ARGV[2] server run  ARGV[3] term (0)  ARGV[4] job revision
-- ARGV[5] requests at once per host
-- then per letter: its field in the dead hash, queue index, item to queue, the URL's mark where pages are visited
--   again (else '')
-- Returns {OK, put back} | {RETRY} (sealed) | {CLOSED} (final, or its page budget is spent)
--   | STALE MISSING VERSION RUN
-- Invariants: a letter that is gone was put back by an earlier copy of this call: nothing is queued for it. The
--   record of a letter put back is deleted, so that there is one record for each URL that has ended; where it was
--   trimmed, it is missing no more. `refilled` only grows, and counts among what must not move while a job is being
--   finished.
local refusal, state = shard_refusal(KEYS[1], ARGV[1], ARGV[2])
if refusal then return refusal end
refusal = master_refusal(KEYS[1], ARGV[1], ARGV[3], ARGV[4])
if refusal then return refusal end
if state == 'sealed' then return { 'RETRY' } end
if state ~= 'open' and state ~= 'paused' then return { 'CLOSED' } end
local now, moved, missing, paid = now_ms(KEYS[1]), 0, 0, 0
for at = 6, #ARGV, 4 do
  local letter = redis.call('HGET', KEYS[5], ARGV[at])
  if letter then
    local host = string.match(ARGV[at], '^([^\n]*)\n')
    redis.call('RPUSH', KEYS[9 + tonumber(ARGV[at + 1])], ARGV[at + 2])
    ready_if_free(KEYS[2], KEYS[3], KEYS[4], host, tonumber(ARGV[5]), now)
    redis.call('HDEL', KEYS[5], ARGV[at])
    if is_paid(ARGV[at + 2]) then paid = paid + 1 end
    if redis.call('XDEL', KEYS[6], string.match(letter, '^([^\n]*)\n')) == 0 then missing = missing + 1 end
    if ARGV[at + 3] ~= '' then
      redis.call('ZREM', KEYS[8], ARGV[at + 3])
      redis.call('HDEL', KEYS[9], ARGV[at + 3])
    end
    if redis.call('HINCRBY', KEYS[7], host, -1) <= 0 then redis.call('HDEL', KEYS[7], host) end
    moved = moved + 1
  end
end
if moved > 0 then
  redis.call('HINCRBY', KEYS[1], 'dead', -moved)
  redis.call('HINCRBY', KEYS[1], 'queued', moved)
  redis.call('HINCRBY', KEYS[1], 'refilled', moved)
end
if paid > 0 then redis.call('HINCRBY', KEYS[1], 'paid_ended', -paid) end
if missing > 0 then redis.call('HINCRBY', KEYS[1], 'trimmed', -missing) end
return { 'OK', moved }
