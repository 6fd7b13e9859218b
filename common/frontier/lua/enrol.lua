-- enrol: a consumer group begins to read a shard's results, from the first that is left.
-- @use _guard
-- KEYS[1] meta hash  KEYS[2] results stream
-- ARGV[1] layout version  ARGV[2] group
-- Returns {OK, 1 = the group is new here, results trimmed so far} | MISSING VERSION
-- Invariants: on every shard before the group reads any, so that nothing is trimmed which it has not read.
local refusal = presence_refusal(KEYS[1], ARGV[1])
if refusal then return refusal end
local is_new = 1
if redis.call('EXISTS', KEYS[2]) == 1 then
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', KEYS[2])) do
    for at = 1, #flat, 2 do
      if flat[at] == 'name' and flat[at + 1] == ARGV[2] then is_new = 0 end
    end
  end
end
if is_new == 1 then redis.call('XGROUP', 'CREATE', KEYS[2], ARGV[2], '0', 'MKSTREAM') end
return { 'OK', is_new, tonumber(redis.call('HGET', KEYS[1], 'trimmed') or 0) }
