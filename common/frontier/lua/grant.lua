-- grant: the master moves a shard's page budget; a negative amount takes back what is unused.
-- @use _guard
-- KEYS[1] meta hash
-- ARGV[1] layout version  ARGV[2] term  ARGV[3] job revision  ARGV[4] amount (pages)
-- ARGV[5] the grant as it was seen ('' = whatever it is)
-- Returns {OK, amount really changed} | STALE MISSING VERSION
-- Invariants: nothing changes where the grant is not the one that was seen, so that a call which arrives late,
--   after its sender looked again and decided anew, does not count twice.
local refusal = master_refusal(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if refusal then return refusal end
if ARGV[5] ~= '' and redis.call('HGET', KEYS[1], 'grant') ~= ARGV[5] then return { 'OK', 0 } end
local amount = tonumber(ARGV[4])
if amount < 0 then
  local m = redis.call('HMGET', KEYS[1], 'grant', 'fetched', 'not_modified', 'in_flight', 'paid', 'paid_in_flight')
  local used = tonumber(m[2]) + tonumber(m[3]) + tonumber(m[4]) + tonumber(m[5] or 0) - tonumber(m[6] or 0)
  local unused = math.max(0, tonumber(m[1]) - used)
  amount = -math.min(-amount, unused)
end
if amount ~= 0 then redis.call('HINCRBY', KEYS[1], 'grant', amount) end
return { 'OK', amount }
