-- claim: the owner takes due URLs of the hosts it names, in their order, and moves them in flight.
-- @use _guard _hosts
-- KEYS[1] meta hash   KEYS[2] ready zset      KEYS[3] pace zset       KEYS[4] slots zset   KEYS[5] slot hash
-- KEYS[6] busy hash   KEYS[7] in_flight hash  KEYS[8] delayed zset    KEYS[9] pages hash (per host)
-- KEYS[10] blocked set                        KEYS[11] delays hash    KEYS[12..] queues of the named hosts
-- ARGV[1] layout version  ARGV[2] server run  ARGV[3] token           ARGV[4] adoption
-- ARGV[5] URLs wanted     ARGV[6] ms after which a claim may no longer be sent
-- ARGV[7] ms a request may last               ARGV[8] requests at once per host
-- ARGV[9] pages a host (0 = no limit)         ARGV[10] hosts and delayed URLs to look ahead
-- then per host: host key, delay ms, ms before its time at which it counts as due (0 unless its permits are known to keep the delay)
-- Returns {OK, state, {claim, host index, item, rule}..., {host, due in ms}..., {due delayed member}...,
--   ms until something may become due (-1: nothing known), {host, delay in ms set for it}... of those due}
--   | STALE MISSING VERSION RUN (also: adopted anew)
--   rule: '' = fetch it; else the budget or state for which it is to be committed as dropped.
-- Invariants: the next time of a host is set here as well as at the end of the response; a claim whose
--   reply is lost is found again by requeue (it is in flight under this token and not held). Both budgets are
--   exact: a page counts from its claim on, whatever became of its slot. One that is visited again and has used up
--   its page of them before (paid) needs no other; it is dropped only with the job.
local refusal, state = owner_refusal(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if refusal then return refusal end
if redis.call('HGET', KEYS[1], 'adoption') ~= ARGV[4] then return { 'RUN' } end
local dropping = state == 'cancelled' or state == 'spent'
if state ~= 'open' and not dropping then return { 'OK', state, {}, {}, {}, -1, {} } end

local token, want, hold, lasts = ARGV[3], tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local per_host, per_host_pages = tonumber(ARGV[8]), tonumber(ARGV[9])
local look, hosts = tonumber(ARGV[10]), (#ARGV - 10) / 3

local now = now_ms(KEYS[1])
local clock = tonumber(redis.call('HGET', KEYS[1], 'clock') or 0)
if now < clock then
  redis.call('HINCRBY', KEYS[1], 'skew', clock - now)
  now = clock
end

-- Requests that are surely over give their slot back, one delay after the last moment they could end (above one
-- request at a time the delay counts from start to start, and is over).
for _, claim in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now, 'LIMIT', 0, 100)) do
  local over = tonumber(redis.call('ZSCORE', KEYS[4], claim))
  local host, delay = free_slot(KEYS[4], KEYS[5], KEYS[6], claim)
  if delay > 0 and per_host == 1 then postpone(KEYS[2], KEYS[3], host, over + delay) end
  make_ready(KEYS[2], KEYS[3], host, now)
end
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now - 1000)

local m = redis.call('HMGET', KEYS[1], 'quiet', 'grant', 'fetched', 'not_modified', 'in_flight', 'claims', 'paid',
  'paid_in_flight')
local quiet = tonumber(m[1])
local in_flight, serial = tonumber(m[5]), tonumber(m[6])
local paid, paid_in_flight = tonumber(m[7] or 0), tonumber(m[8] or 0)
local allowance = tonumber(m[2]) - tonumber(m[3]) - tonumber(m[4]) - in_flight - (paid - paid_in_flight)
local has_paid = paid > paid_in_flight and state ~= 'cancelled'   -- some may be queued
local claims, taken, dropped_rule = {}, 0, state == 'spent' and 'max_pages' or state
local paid_taken = 0
local flying, over, held = {}, {}, {}   -- what goes to in_flight, slots and slot, each in one command
local paced, readied, gone, used_now = {}, {}, {}, {}   -- likewise what changes in pace, ready (set, taken out) and busy
local over_at, now_text = string.format('%.0f', now + hold + lasts), string.format('%.0f', now)   -- printed once

local function move(host, index, items, rule)
  for _, item in ipairs(items) do
    serial = serial + 1
    flying[#flying + 1] = string.format('%.0f', serial)
    flying[#flying + 1] = token .. '\n' .. host .. '\n' .. item
    claims[#claims + 1] = serial
    claims[#claims + 1] = index
    claims[#claims + 1] = item
    claims[#claims + 1] = rule
    if paid > 0 and is_paid(item) then paid_taken = paid_taken + 1 end
    taken = taken + 1
  end
end

-- How many items at the front of a queue may be taken, of at most `most`: those that are paid for, and between them up
-- to `room` others, which are counted as well.
local function passing(queue, most, room)
  local count, others = 0, 0
  for _, item in ipairs(redis.call('LRANGE', queue, 0, most - 1)) do
    if not is_paid(item) then
      if others >= room then break end
      others = others + 1
    end
    count = count + 1
  end
  return count, others
end

-- How many items at the front of a queue are to be dropped, of at most `most`: those before the first that is paid for.
local function unpaid(queue, most)
  local items = redis.call('LRANGE', queue, 0, most - 1)
  for at, item in ipairs(items) do
    if is_paid(item) then return at - 1 end
  end
  return #items
end

-- Pages a host may still be asked for, beside those in flight. These are looked through only near the limit.
local in_flight_by_host
local function room_of(host, pages)
  if per_host_pages == 0 or per_host_pages - pages > in_flight + want then return math.huge end
  if not in_flight_by_host then
    in_flight_by_host = {}
    for _, entry in ipairs(redis.call('HVALS', KEYS[7])) do
      local _, one, item = parse_in_flight(entry)
      if not is_paid(item) then in_flight_by_host[one] = (in_flight_by_host[one] or 0) + 1 end
    end
  end
  return per_host_pages - pages - (in_flight_by_host[host] or 0)
end

local BLOCKED_LOOK = 60000   -- a blocked host is due again after this many ms, only to be put off once more
local has_blocked = redis.call('EXISTS', KEYS[10]) == 1

local named, is_done = {}, {}
for index = 1, hosts do named[index] = ARGV[8 + 3 * index] end
local dues, rests = answers('ZMSCORE', KEYS[2], named), answers('ZMSCORE', KEYS[3], named)
local busy = answers('HMGET', KEYS[6], named)

for index = 1, hosts do
  local left = want - taken
  if left <= 0 then break end
  local host, delay, queue = named[index], math.floor(tonumber(ARGV[9 + 3 * index])), KEYS[11 + index]
  local lead = tonumber(ARGV[10 + 3 * index])
  local due = is_done[host] and math.huge or tonumber(dues[index] or 'inf')   -- named twice: once is enough
  is_done[host] = true
  local pages = per_host_pages > 0 and tonumber(redis.call('HGET', KEYS[9], host) or 0) or 0
  local is_over = dropping or (per_host_pages > 0 and pages >= per_host_pages)
  if is_over then
    local count = has_paid and unpaid(queue, left) or left
    local items = count > 0 and redis.call('LPOP', queue, count)
    if items then move(host, index, items, dropping and dropped_rule or 'max_pages_per_host') end
    if redis.call('EXISTS', queue) == 0 then gone[#gone + 1] = host end
    left = want - taken
  end
  if is_over and not (has_paid and left > 0 and redis.call('EXISTS', queue) == 1) then
    -- Nothing is left of it that may be fetched, or not in this call.
  elseif has_blocked and redis.call('SISMEMBER', KEYS[10], host) == 1 then
    redis.call('ZADD', KEYS[2], 'XX', now + BLOCKED_LOOK, host)
  elseif due <= now + lead and now >= quiet then
    local used, room = tonumber(busy[index] or 0), room_of(host, pages)
    local take = math.min(per_host - used, math.ceil(left / (hosts - index + 1)))
    if delay > 0 then take = math.min(take, 1) end
    local fresh = is_over and 0 or math.min(take, allowance, room)   -- of these, how many use up a page of the budgets
    if has_paid and take > 0 then take, fresh = passing(queue, take, fresh) else take = fresh end
    local items = take > 0 and redis.call('LPOP', queue, take)
    if items then
      local first, slot = #flying + 1, token .. ' ' .. delay .. ' ' .. host
      move(host, index, items, '')
      for at = first, #flying, 2 do
        over[#over + 1] = over_at
        over[#over + 1] = flying[at]
        held[#held + 1] = flying[at]
        held[#held + 1] = slot
      end
      if not has_paid then fresh = #items end
      allowance = allowance - fresh
      room = room - fresh
      used = used + #items
      used_now[#used_now + 1] = host
      used_now[#used_now + 1] = used
    end
    local rest = items and delay > 0 and math.max(due, now) + delay + 1 or 0   -- as postpone has it
    if rest > 0 then
      paced[#paced + 1] = rest
      paced[#paced + 1] = host
    end
    if used >= per_host or (room <= 0 and not (has_paid and items)) or redis.call('EXISTS', queue) == 0 then
      gone[#gone + 1] = host
    elseif items then
      local at = math.max(tonumber(rests[index] or 0), rest)
      readied[#readied + 1] = at > now and at or now_text
      readied[#readied + 1] = host
    end
  end
end
for i = 1, #paced, 1000 do redis.call('ZADD', KEYS[3], 'GT', unpack(paced, i, math.min(i + 999, #paced))) end
in_steps('ZADD', KEYS[2], readied)
in_steps('ZREM', KEYS[2], gone)
in_steps('HSET', KEYS[6], used_now)
if taken > 0 then
  in_steps('HSET', KEYS[7], flying)
  in_steps('ZADD', KEYS[4], over)
  in_steps('HSET', KEYS[5], held)
  redis.call('HSET', KEYS[1], 'claims', serial, 'clock', now)
  redis.call('HINCRBY', KEYS[1], 'queued', -taken)
  redis.call('HINCRBY', KEYS[1], 'in_flight', taken)
  if paid_taken > 0 then redis.call('HINCRBY', KEYS[1], 'paid_in_flight', paid_taken) end
end

-- What to name next time: hosts by time (none while the page budget is out), delayed URLs that are due.
local bound = dropping and '+inf' or now
local ahead, listed = {}, {}
local at_once = dropping and not has_paid
if dropping or has_paid or allowance > 0 then listed = redis.call('ZRANGE', KEYS[2], 0, look - 1, 'WITHSCORES') end
for i = 1, #listed, 2 do
  ahead[#ahead + 1] = listed[i]
  ahead[#ahead + 1] = at_once and 0 or math.max(0, math.max(tonumber(listed[i + 1]), quiet) - now)
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
local delays = {}
if #ahead > 0 and redis.call('EXISTS', KEYS[11]) == 1 then
  for i = 1, #ahead, 2 do
    local ms = redis.call('HGET', KEYS[11], ahead[i])
    if ms then
      delays[#delays + 1] = ahead[i]
      delays[#delays + 1] = ms
    end
  end
end
return { 'OK', state, claims, ahead, delayed, wait, delays }
