-- ledger: pages of a host against a budget that several shards share; URLs are entered before they are fetched.
-- @use _guard
-- KEYS[1] meta hash (of the shard that the host as a whole belongs to)
-- KEYS[2] ledger hash of the host: fingerprint -> token of the owner that entered it, then '+' once it is a page;
--   '' -> number of entries without '+'
-- ARGV[1] layout version  ARGV[2] pages the host may be asked for  ARGV[3] token of the caller  ARGV[4] URLs to enter
-- then their fingerprints, then per URL that is settled: fingerprint, 1 = it is a page
-- Returns {OK, {per URL to enter: 1 = entered, 0 = wait for those in flight, -1 = spent}} | MISSING VERSION
-- Invariants: never more entries than pages allowed; a URL is entered once, however often it is claimed. Settling
--   comes before the URL's own commit: where an owner ends in between, the next one enters and settles it anew,
--   from when on its former owner (a lower token of the same shard) changes nothing.
local refusal = presence_refusal(KEYS[1], ARGV[1])
if refusal then return refusal end
local limit, token, count = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
for at = 5 + count, #ARGV, 2 do
  local entry = redis.call('HGET', KEYS[2], ARGV[at])
  if entry == token or entry == token .. '+' then
    if entry == token then redis.call('HINCRBY', KEYS[2], '', -1) end
    if ARGV[at + 1] == '1' then
      redis.call('HSET', KEYS[2], ARGV[at], token .. '+')
    else
      redis.call('HDEL', KEYS[2], ARGV[at])
    end
  end
end
local answers = {}
for at = 5, 4 + count do
  local entry = redis.call('HGET', KEYS[2], ARGV[at])
  local open = tonumber(redis.call('HGET', KEYS[2], '') or -1)
  local entries = redis.call('HLEN', KEYS[2]) - (open >= 0 and 1 or 0)
  local owner = entry and tonumber(string.match(entry, '^%d+')) or 0
  if owner > tonumber(token) then
    answers[#answers + 1] = 0
  elseif entry or entries < limit then
    if not entry or string.sub(entry, -1) == '+' then redis.call('HINCRBY', KEYS[2], '', 1) end
    redis.call('HSET', KEYS[2], ARGV[at], token)
    answers[#answers + 1] = 1
  else
    answers[#answers + 1] = open > 0 and 0 or -1
  end
end
return { 'OK', answers }
