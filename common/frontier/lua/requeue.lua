-- requeue: the owner puts back what is in flight and nobody works on: claims of older owners (takeover),
-- and its own claims whose reply was lost (reconcile; it names those only).
-- @use _guard _hosts
-- KEYS[1] meta hash  KEYS[2] ready zset  KEYS[3] pace zset  KEYS[4] slots zset  KEYS[5] slot hash
-- KEYS[6] busy hash  KEYS[7] in_flight   KEYS[8..] queues of the hosts concerned
-- ARGV[1] layout version  ARGV[2] server run  ARGV[3] token
-- ARGV[4] tokens below this belong to processes known dead: their requests are over
-- ARGV[5] requests at once per host           ARGV[6] ms a request may last
-- then per claim: claim, queue index, item to queue ('' = as it is)
-- Returns {OK, requeued} | STALE MISSING VERSION RUN
-- Invariants: a slot of a former owner that may be alive stays until its request is over (freed or expired).
--   Where the host has other slots, its next start is a delay after the last moment that request could be sent.
--   So spacing and concurrency hold across owners.
local refusal = owner_refusal(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if refusal then return refusal end
local token, dead_below, per_host = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local now, claims = now_ms(KEYS[1]), {}
for at = 7, #ARGV, 3 do claims[#claims + 1] = ARGV[at] end
local entries = get_all(KEYS[7], claims)

local taken, over, alive, queued, hosts, paid = {}, {}, {}, {}, {}, 0
for at = 7, #ARGV, 3 do
  local claim = ARGV[at]
  local entry = entries[claim]
  if entry then
    entries[claim] = nil
    local owner, host, item = parse_in_flight(entry)
    owner = tonumber(owner)
    taken[#taken + 1] = claim
    if is_paid(item) then paid = paid + 1 end
    local queue = tonumber(ARGV[at + 1])
    local list = queued[queue]
    if not list then list = {}; queued[queue] = list; hosts[#hosts + 1] = host end
    list[#list + 1] = ARGV[at + 2] ~= '' and ARGV[at + 2] or item
    if owner == token or owner < dead_below then
      over[#over + 1] = claim
    elseif per_host > 1 then
      alive[#alive + 1] = { claim, host }
    end
  end
end
for queue, list in pairs(queued) do in_steps('LPUSH', KEYS[7 + queue], list) end
in_steps('HDEL', KEYS[7], taken)
local rests = {}   -- by host
for _, freed in pairs(free_slots(KEYS[4], KEYS[5], KEYS[6], over)) do
  rests[freed[1]] = math.max(rests[freed[1]] or 0, freed[2])
end
for host, delay in pairs(rests) do
  if delay > 0 then postpone(KEYS[2], KEYS[3], host, now + delay) end
end
for _, one in ipairs(alive) do
  local last = redis.call('ZSCORE', KEYS[4], one[1])
  if last then
    local delay = tonumber(string.match(redis.call('HGET', KEYS[5], one[1]), '^%S+ (%S+)'))
    if delay > 0 then postpone(KEYS[2], KEYS[3], one[2], tonumber(last) - tonumber(ARGV[6]) + delay) end
  end
end
make_free_ready(KEYS[2], KEYS[3], KEYS[6], hosts, per_host, now)
if paid > 0 then redis.call('HINCRBY', KEYS[1], 'paid_in_flight', -paid) end
if #taken > 0 then
  redis.call('HINCRBY', KEYS[1], 'in_flight', -#taken)
  redis.call('HINCRBY', KEYS[1], 'queued', #taken)
end
return { 'OK', #taken }
