-- free: the responses of claims have ended; their slots are free. Not fenced: a slot belongs to a claim,
-- and a former owner alone knows when its last requests end.
-- @use _guard _hosts
-- @flags allow-oom
-- KEYS[1] meta hash  KEYS[2] ready zset  KEYS[3] pace zset  KEYS[4] slots zset  KEYS[5] slot hash
-- KEYS[6] busy hash
-- ARGV[1] layout version  ARGV[2] requests at once per host; then per claim: claim, ms since the response ended
-- Returns {OK, freed} | MISSING VERSION
-- Invariants: with one request at a time the host's delay counts from the end of the response; above that
--   it counts from start to start, which the claim has seen to.
local version = redis.call('HGET', KEYS[1], 'version')
if not version then return { 'MISSING' } end
if version ~= ARGV[1] then return { 'VERSION', version } end
local now, freed, hosts = now_ms(KEYS[1]), 0, {}
for at = 3, #ARGV, 2 do
  local host, delay = free_slot(KEYS[4], KEYS[5], KEYS[6], ARGV[at])
  if host then
    if delay > 0 and ARGV[2] == '1' then postpone(KEYS[2], KEYS[3], host, now - tonumber(ARGV[at + 1]) + delay) end
    hosts[host] = true
    freed = freed + 1
  end
end
for host in pairs(hosts) do make_ready(KEYS[2], KEYS[3], host, now) end
return { 'OK', freed }
