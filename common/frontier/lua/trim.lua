-- trim: drops the results that every consumer group has acknowledged, and counts them.
-- @use _guard
-- @flags allow-oom
-- KEYS[1] meta hash  KEYS[2] results stream
-- ARGV[1] layout version
-- Returns {OK, results dropped} | MISSING VERSION
-- Invariants: by id, behind the first result that some group has not read or not acknowledged. Without a
--   group nothing is dropped.
local refusal = presence_refusal(KEYS[1], ARGV[1])
if refusal then return refusal end
if redis.call('EXISTS', KEYS[2]) == 0 then return { 'OK', 0 } end
local keep, keep_ms, keep_seq
for _, flat in ipairs(redis.call('XINFO', 'GROUPS', KEYS[2])) do
  local group = {}
  for at = 1, #flat, 2 do group[flat[at]] = flat[at + 1] end
  local id, step = group['last-delivered-id'], 1
  if group['pending'] > 0 then
    id, step = redis.call('XPENDING', KEYS[2], group['name'], '-', '+', 1)[1][1], 0
  end
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  ms, seq = tonumber(ms), tonumber(seq) + step
  if not keep or ms < keep_ms or (ms == keep_ms and seq < keep_seq) then
    keep, keep_ms, keep_seq = string.format('%.0f-%.0f', ms, seq), ms, seq
  end
end
if not keep then return { 'OK', 0 } end
local dropped = redis.call('XTRIM', KEYS[2], 'MINID', keep)
if dropped > 0 then redis.call('HINCRBY', KEYS[1], 'trimmed', dropped) end
return { 'OK', dropped }
