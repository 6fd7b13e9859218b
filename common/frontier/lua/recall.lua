-- recall: the owner moves pages that are due for their next visit to the end of their hosts' queues.
-- @use _guard _hosts
-- KEYS[1] meta hash  KEYS[2] ready zset    KEYS[3] pace zset  KEYS[4] busy hash  KEYS[5] due zset
-- KEYS[6] visited hash                     KEYS[7] dead hash  KEYS[8] errors hash
-- KEYS[9..] queues of the hosts concerned
-- ARGV[1] layout version  ARGV[2] server run  ARGV[3] token  ARGV[4] revision of the job's record by which pages
--   are visited again     ARGV[5] requests at once per host
-- then per page: mark, queue index
-- Returns {OK, moved} | {OUTDATED} (the shard has seen a newer revision: read the record again)
--   | STALE MISSING VERSION RUN
-- Invariants: a page that is not due (any more) was recalled by an earlier copy of this call. It counts as queued
--   from here on, and its record stays until the next one takes its place: `revisiting` counts these, and
--   `paid` those that have used up their page of the budgets (`paid_ended`: and had ended as no page).
--   `refilled` only grows.
local refusal, state = owner_refusal(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if refusal then return refusal end
if state ~= 'open' and state ~= 'spent' then return { 'OK', 0 } end
if tonumber(ARGV[4]) < tonumber(redis.call('HGET', KEYS[1], 'revision')) then return { 'OUTDATED' } end
local now, from, moved, paid_ended = now_ms(KEYS[1]), {}, 0, 0
for at = 6, #ARGV, 2 do
  local mark = ARGV[at]
  local due, value = redis.call('ZSCORE', KEYS[5], mark), redis.call('HGET', KEYS[6], mark)
  if due and value and tonumber(due) <= now then
    local id, outcome, claim, host, item = parse_visited(value)
    redis.call('ZREM', KEYS[5], mark)
    redis.call('HSET', KEYS[6], mark, string.sub(value, 1, -1 - #item))
    redis.call('RPUSH', KEYS[8 + tonumber(ARGV[at + 1])], item)
    ready_if_free(KEYS[2], KEYS[3], KEYS[4], host, tonumber(ARGV[5]), now)
    if outcome == 'dead' then redis.call('HDEL', KEYS[7], host .. '\n' .. claim) end
    if outcome == 'dead' or outcome == 'failed' then
      if redis.call('HINCRBY', KEYS[8], host, -1) <= 0 then redis.call('HDEL', KEYS[8], host) end
    end
    if is_paid(item) and outcome ~= 'fetched' and outcome ~= 'not_modified' then paid_ended = paid_ended + 1 end
    from[outcome] = (from[outcome] or 0) + 1
    moved = moved + 1
  end
end
for outcome, count in pairs(from) do redis.call('HINCRBY', KEYS[1], outcome, -count) end
local pages = (from['fetched'] or 0) + (from['not_modified'] or 0)
if pages > 0 then redis.call('HINCRBY', KEYS[1], 'paid', pages) end
if paid_ended > 0 then redis.call('HINCRBY', KEYS[1], 'paid_ended', -paid_ended) end
if moved > 0 then
  redis.call('HINCRBY', KEYS[1], 'queued', moved)
  redis.call('HINCRBY', KEYS[1], 'revisiting', moved)
  redis.call('HINCRBY', KEYS[1], 'refilled', moved)
end
return { 'OK', moved }
