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
local now, moved = now_ms(KEYS[1]), 0
for at = 7, #ARGV, 3 do
  local claim = ARGV[at]
  local entry = redis.call('HGET', KEYS[7], claim)
  if entry then
    local owner, host, item = parse_in_flight(entry)
    local queue = KEYS[7 + tonumber(ARGV[at + 1])]
    redis.call('LPUSH', queue, ARGV[at + 2] ~= '' and ARGV[at + 2] or item)
    redis.call('HDEL', KEYS[7], claim)
    if tonumber(owner) == token or tonumber(owner) < dead_below then
      local _, delay = free_slot(KEYS[4], KEYS[5], KEYS[6], claim)
      if delay and delay > 0 then postpone(KEYS[2], KEYS[3], host, now + delay) end
    elseif per_host > 1 then
      local over = redis.call('ZSCORE', KEYS[4], claim)
      if over then
        local delay = tonumber(string.match(redis.call('HGET', KEYS[5], claim), '^%S+ (%S+)'))
        if delay > 0 then postpone(KEYS[2], KEYS[3], host, tonumber(over) - tonumber(ARGV[6]) + delay) end
      end
    end
    if tonumber(redis.call('HGET', KEYS[6], host) or 0) < per_host then
      make_ready(KEYS[2], KEYS[3], host, now)
    end
    moved = moved + 1
  end
end
if moved > 0 then
  redis.call('HINCRBY', KEYS[1], 'in_flight', -moved)
  redis.call('HINCRBY', KEYS[1], 'queued', moved)
end
return { 'OK', moved }
