-- claim: the owner takes due URLs of the hosts it names, in their order, and moves them in flight.
-- @use _guard _hosts
-- KEYS[1] meta hash   KEYS[2] ready zset      KEYS[3] pace zset       KEYS[4] slots zset   KEYS[5] slot hash
-- KEYS[6] busy hash   KEYS[7] in_flight hash  KEYS[8] delayed zset    KEYS[9] pages hash (per host)
-- KEYS[10..] queues of the named hosts
-- ARGV[1] layout version  ARGV[2] server run  ARGV[3] token           ARGV[4] URLs wanted
-- ARGV[5] ms after which a claim may no longer be sent                ARGV[6] ms a request may last
-- ARGV[7] requests at once per host           ARGV[8] pages a host (0 = no limit)
-- ARGV[9] hosts and delayed URLs to look ahead; then per host: host key, delay ms
-- Returns {OK, state, {claim, host index, item, rule}..., {host, due in ms}..., {due delayed member}...,
--   ms until something may become due (-1: nothing known)} | STALE MISSING VERSION RUN
--   rule: '' = fetch it; else the budget or state for which it is to be committed as dropped.
-- Invariants: the next time of a host is set here as well as at the end of the response; a claim whose
--   reply is lost is found again by requeue (it is in flight under this token and not held).
local refusal, state = owner_refusal(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if refusal then return refusal end
local dropping = state == 'cancelled' or state == 'spent'
if state ~= 'open' and not dropping then return { 'OK', state, {}, {}, {}, -1 } end

local token, want = ARGV[3], tonumber(ARGV[4])
local hold, lasts, per_host, per_host_pages = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local look, hosts = tonumber(ARGV[9]), (#ARGV - 9) / 2
local now = now_ms()

-- Requests that are surely over give their slot back, one delay after the last moment they could end.
for _, claim in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now, 'LIMIT', 0, 100)) do
  local over = tonumber(redis.call('ZSCORE', KEYS[4], claim))
  local host, delay = free_slot(KEYS[4], KEYS[5], KEYS[6], claim)
  if delay > 0 then postpone(KEYS[3], host, over + delay) end
  make_ready(KEYS[2], KEYS[3], host, now)
end
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now - 1000)

local m = redis.call('HMGET', KEYS[1], 'quiet', 'grant', 'fetched', 'not_modified', 'in_flight', 'claims')
local quiet = tonumber(m[1])
local allowance = tonumber(m[2]) - tonumber(m[3]) - tonumber(m[4]) - tonumber(m[5])
local serial = tonumber(m[6])
local claims, taken, dropped_rule = {}, 0, state == 'spent' and 'max_pages' or state

local function move(host, index, items, rule)
  for _, item in ipairs(items) do
    serial = serial + 1
    redis.call('HSET', KEYS[7], serial, token .. '\n' .. host .. '\n' .. item)
    claims[#claims + 1] = serial
    claims[#claims + 1] = index
    claims[#claims + 1] = item
    claims[#claims + 1] = rule
    taken = taken + 1
  end
end

for index = 1, hosts do
  local left = want - taken
  if left <= 0 then break end
  local host, delay, queue = ARGV[8 + 2 * index], tonumber(ARGV[9 + 2 * index]), KEYS[9 + index]
  local due = tonumber(redis.call('ZSCORE', KEYS[2], host) or 'inf')
  local pages = per_host_pages > 0 and tonumber(redis.call('HGET', KEYS[9], host) or 0) or 0
  if dropping or (per_host_pages > 0 and pages >= per_host_pages) then
    local items = redis.call('LPOP', queue, left)
    if items then move(host, index, items, dropping and dropped_rule or 'max_pages_per_host') end
    if redis.call('EXISTS', queue) == 0 then redis.call('ZREM', KEYS[2], host) end
  elseif due <= now and now >= quiet then
    local used = tonumber(redis.call('HGET', KEYS[6], host) or 0)
    local take = math.min(per_host - used, math.ceil(left / (hosts - index + 1)), allowance)
    if delay > 0 then take = math.min(take, 1) end
    if per_host_pages > 0 then take = math.min(take, per_host_pages - pages - used) end
    local items = take > 0 and redis.call('LPOP', queue, take)
    if items then
      local before = serial
      move(host, index, items, '')
      for claim = before + 1, serial do
        redis.call('ZADD', KEYS[4], now + hold + lasts, claim)
        redis.call('HSET', KEYS[5], claim, token .. ' ' .. delay .. ' ' .. host)
      end
      allowance = allowance - #items
      used = redis.call('HINCRBY', KEYS[6], host, #items)
      if delay > 0 then postpone(KEYS[3], host, now + delay) end
    end
    if used >= per_host or redis.call('EXISTS', queue) == 0 then
      redis.call('ZREM', KEYS[2], host)
    elseif items then
      make_ready(KEYS[2], KEYS[3], host, now)
    end
  end
end
if taken > 0 then
  redis.call('HSET', KEYS[1], 'claims', serial)
  redis.call('HINCRBY', KEYS[1], 'queued', -taken)
  redis.call('HINCRBY', KEYS[1], 'in_flight', taken)
end

-- What to name next time: hosts by time, delayed URLs that are due.
local bound = dropping and '+inf' or now
local ahead = {}
local listed = redis.call('ZRANGE', KEYS[2], 0, look - 1, 'WITHSCORES')
for i = 1, #listed, 2 do
  ahead[#ahead + 1] = listed[i]
  ahead[#ahead + 1] = dropping and 0 or math.max(0, math.max(tonumber(listed[i + 1]), quiet) - now)
end
local delayed = redis.call('ZRANGEBYSCORE', KEYS[8], '-inf', bound, 'LIMIT', 0, look)
local wait = -1
local function sooner(score)
  if score then
    local ms = math.max(0, tonumber(score) - now)
    if wait < 0 or ms < wait then wait = ms end
  end
end
if ahead[2] then sooner(now + ahead[2]) end
sooner(redis.call('ZRANGE', KEYS[8], 0, 0, 'WITHSCORES')[2])
sooner(redis.call('ZRANGE', KEYS[4], 0, 0, 'WITHSCORES')[2])
return { 'OK', state, claims, ahead, delayed, wait }
