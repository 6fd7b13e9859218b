-- commit: the owner finishes claims: result record out, claim gone, host's next time set, counters moved.
-- @use _guard _hosts
-- KEYS[1] meta hash  KEYS[2] ready zset   KEYS[3] pace zset       KEYS[4] slots zset    KEYS[5] slot hash
-- KEYS[6] busy hash  KEYS[7] in_flight    KEYS[8] results stream  KEYS[9] dead hash     KEYS[10] pages hash
-- KEYS[11] errors hash                    KEYS[12] rules hash     KEYS[13] due zset      KEYS[14] visited hash
-- KEYS[15..] queues of the hosts concerned
-- ARGV[1] layout version  ARGV[2] server run  ARGV[3] token  ARGV[4] 1 = count pages per host
-- ARGV[5] links refused since the last commit, as JSON {rule: count} ('' = none; not counted again where every
--   claim is gone)
-- then per claim: claim, host, queue index, ms since the response ended (-1: no request), delay ms,
--   outcome (a counter's name), result record (JSON), dead letter ('' = none), next visit ('' = pages are not
--   visited again; else its mark of 8 bytes, ms until then (-1: never), line feed, item to queue)
-- Returns {OK, {claims that were gone}} | STALE MISSING VERSION RUN
-- Invariants: every outlink was offered, and answered OK, before this call. A claim that is gone was
--   committed by an earlier copy of this call, or was requeued: its record is not written. The record of a visit
--   takes the place of the one before; where that was trimmed, it is missing no more. A visit that is dropped
--   leaves things as the one before has left them, if that did not end dead (its letter is gone).
local refusal = owner_refusal(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if refusal then return refusal end
local refused = ARGV[5] ~= '' and cjson.decode(ARGV[5])
local now, moved = now_ms(KEYS[1]), {}
local mine, gone, done = take_in_flight(KEYS[1], KEYS[7], ARGV[3], 6, 9)
local function count(field, by) moved[field] = (moved[field] or 0) + by end

-- Takes note of when a page is visited next.
local function visit_next(mark, id, outcome, claim, host, after, item)
  if after < 0 then
    redis.call('HDEL', KEYS[14], mark)
  else
    redis.call('ZADD', KEYS[13], now + after, mark)
    redis.call('HSET', KEYS[14], mark, table.concat({ id, outcome, claim, host, item }, '\n'))
  end
end

for at = 6, #ARGV, 9 do
  local claim, host, outcome, visit = ARGV[at], ARGV[at + 1], ARGV[at + 5], ARGV[at + 8]
  if mine[claim] then
    local is_page = outcome == 'fetched' or outcome == 'not_modified'
    local was_paid = is_paid(mine[claim])
    local mark, after, item, before, was, id
    if visit ~= '' then
      mark = string.sub(visit, 1, 8)
      after, item = string.match(visit, '^(%-?%d+)\n(.*)$', 9)
      local value = redis.call('HGET', KEYS[14], mark)
      if value then
        before, was = parse_visited(value)
        count('revisiting', -1)
      end
      if was_paid and is_page then count('paid', -1) end
    end
    if outcome == 'dropped' and was and was ~= 'dead' then
      id, outcome = before, was
      if was == 'fetched' or was == 'not_modified' then count('paid', -1) end
    else
      id = redis.call('XADD', KEYS[8], '*', 'r', ARGV[at + 6])
      if before then
        if redis.call('XDEL', KEYS[8], before) == 0 then count('trimmed', -1) end
        count('revisits', 1)
      end
      if ARGV[at + 7] ~= '' then
        redis.call('HSET', KEYS[9], host .. '\n' .. claim, id .. '\n' .. ARGV[at + 7])
      end
      if ARGV[4] == '1' and is_page and not was_paid then redis.call('HINCRBY', KEYS[10], host, 1) end
    end
    if mark then visit_next(mark, id, outcome, claim, host, tonumber(after), item) end
    if outcome == 'failed' or outcome == 'dead' then redis.call('HINCRBY', KEYS[11], host, 1) end
    count(outcome, 1)
    if was_paid and outcome ~= 'fetched' and outcome ~= 'not_modified' then count('paid_ended', 1) end
    mine[claim] = nil
  end
end
end_claims(KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], 14, 6, 9, now)
for field, by in pairs(moved) do redis.call('HINCRBY', KEYS[1], field, by) end
if done > 0 then redis.call('HINCRBY', KEYS[1], 'in_flight', -done) end
if refused and (done > 0 or #gone == 0) then
  for rule, links in pairs(refused) do
    redis.call('HINCRBY', KEYS[1], 'filtered', links)
    redis.call('HINCRBY', KEYS[12], rule, links)
  end
end
return { 'OK', gone }
