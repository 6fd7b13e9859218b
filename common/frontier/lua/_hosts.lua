-- Shared by the scripts that move URLs of hosts: prepended by the loader after _guard.lua.
-- A slot is one request that may be on the wire: slots[claim] = time it is surely over (ms),
-- slot[claim] = "token delay host". It outlives takeover (a former owner's request may still run).

-- A host is in `ready` when it has queued URLs and may be claimed; entries for hosts without URLs are
-- harmless (a claim removes them). The score is when its next request may start, never before its `pace`.
-- A claim takes a host out only if it has no URLs, or if something under way brings it back: a slot in use
-- (its end or expiry does), or a claim in flight (its settlement or requeue does).
local function make_ready(ready, pace, host, now)
  local at = tonumber(redis.call('ZSCORE', pace, host) or 0)
  if at < now then at = now end
  redis.call('ZADD', ready, at, host)
end

-- Nothing may be sent to the host before `at`. The clock is rounded down to whole ms, so one more is needed.
local function postpone(ready, pace, host, at)
  redis.call('ZADD', pace, 'GT', at + 1, host)
  redis.call('ZADD', ready, 'XX', 'GT', at + 1, host)
end

-- Runs a command on a list in pieces that Lua's stack holds.
local function in_steps(command, key, list)
  for i = 1, #list, 1000 do redis.call(command, key, unpack(list, i, math.min(i + 999, #list))) end
end

-- Returns what a command says of each of a list, in its order (false where it knows nothing).
local function answers(command, key, list)
  local all = {}
  for i = 1, #list, 1000 do
    for n, one in ipairs(redis.call(command, key, unpack(list, i, math.min(i + 999, #list)))) do all[i + n - 1] = one end
  end
  return all
end

-- Returns the values of hash fields by field, without those that are missing.
local function get_all(hash, fields)
  local found = {}
  for n, value in ipairs(answers('HMGET', hash, fields)) do
    if value then found[fields[n]] = value end
  end
  return found
end

-- Has URLs been queued for the host, or it let go: it is ready, unless all its slots are in use.
local function ready_if_free(ready, pace, busy, host, per_host, now)
  if tonumber(redis.call('HGET', busy, host) or 0) < per_host then make_ready(ready, pace, host, now) end
end

-- make_ready for many hosts, in two commands.
local function make_all_ready(ready, pace, hosts, now)
  local set, now_text = {}, string.format('%.0f', now)
  for n, rest in ipairs(answers('ZMSCORE', pace, hosts)) do
    set[2 * n - 1] = rest and tonumber(rest) > now and rest or now_text
    set[2 * n] = hosts[n]
  end
  in_steps('ZADD', ready, set)
end

-- ready_if_free for many hosts, in a few commands.
local function make_free_ready(ready, pace, busy, hosts, per_host, now)
  local free = {}
  for n, used in ipairs(answers('HMGET', busy, hosts)) do
    if tonumber(used or 0) < per_host then free[#free + 1] = hosts[n] end
  end
  make_all_ready(ready, pace, free, now)
end

-- Frees the slots of claims as far as they are still held; returns {host, delay, token} by claim.
local function free_slots(slots, slot, busy, claims)
  local freed, held, by_host, parsed = get_all(slot, claims), {}, {}, {}   -- claims of one host have equal values
  for claim, value in pairs(freed) do
    local one = parsed[value]
    if not one then
      local token, delay, host = string.match(value, '^(%S+) (%S+) (.*)$')
      one = { host, tonumber(delay), tonumber(token) }
      parsed[value] = one
    end
    held[#held + 1] = claim
    freed[claim] = one
    by_host[one[1]] = (by_host[one[1]] or 0) + 1
  end
  in_steps('ZREM', slots, held)
  in_steps('HDEL', slot, held)
  local hosts, set, idle = {}, {}, {}
  for host in pairs(by_host) do hosts[#hosts + 1] = host end
  for n, used in ipairs(answers('HMGET', busy, hosts)) do
    local left = tonumber(used or 0) - by_host[hosts[n]]
    if left > 0 then
      set[#set + 1] = hosts[n]
      set[#set + 1] = left
    else
      idle[#idle + 1] = hosts[n]
    end
  end
  in_steps('HSET', busy, set)
  in_steps('HDEL', busy, idle)
  return freed
end

-- Frees the slot of one claim if it is still held; returns its host and delay, or nil.
local function free_slot(slots, slot, busy, claim)
  local freed = free_slots(slots, slot, busy, { claim })[claim]
  if freed then return freed[1], freed[2], freed[3] end
end

-- How commit, retry and release end. Arguments of the script hold `width` values a claim from ARGV[first] on,
-- which begin: claim, host, queue index (after KEYS[queues]), ms since its response ended (-1: no request was
-- sent), delay ms. Their slots are free, their hosts rest, and are ready where URLs are queued.
local function end_claims(ready, pace, slots, slot, busy, queues, first, width, now)
  local claims, hosts = {}, {}
  for at = first, #ARGV, width do
    local host, ago, delay = ARGV[at + 1], tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
    claims[#claims + 1] = ARGV[at]
    hosts[host] = ARGV[at + 2]
    if ago >= 0 and delay > 0 then postpone(ready, pace, host, now - ago + delay) end
  end
  free_slots(slots, slot, busy, claims)
  local queued = {}
  for host, queue in pairs(hosts) do
    if redis.call('EXISTS', KEYS[queues + tonumber(queue)]) == 1 then queued[#queued + 1] = host end
  end
  make_all_ready(ready, pace, queued, now)
end

-- An item whose URL has used up its page of the budgets at an earlier visit: an array of eleven (items.py).
local function is_paid(item) return string.byte(item) == 0x9b end

-- `visited` holds of a page: "result id\noutcome\nclaim\nhost\nitem"; the item is empty while it is on its way.
local function parse_visited(value)
  return string.match(value, '^([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n(.*)$')
end

-- An in-flight entry is "token\nhost\nitem".
local function parse_in_flight(entry)
  local a = string.find(entry, '\n', 1, true)
  local b = string.find(entry, '\n', a + 1, true)
  return string.sub(entry, 1, a - 1), string.sub(entry, a + 1, b - 1), string.sub(entry, b + 1)
end

-- Takes the claims of a script's arguments out of flight if they are this owner's. Returns their items by
-- claim (without those that are gone), those that are gone, and how many were taken. Counts down the paid ones.
local function take_in_flight(meta, in_flight, token, first, width)
  local claims, taken, gone, mine, paid = {}, {}, {}, {}, 0
  for at = first, #ARGV, width do claims[#claims + 1] = ARGV[at] end
  local entries = get_all(in_flight, claims)
  local begin = token .. '\n'
  for _, claim in ipairs(claims) do
    local entry = entries[claim]
    if entry and string.sub(entry, 1, #begin) == begin then
      taken[#taken + 1] = claim
      mine[claim] = string.sub(entry, string.find(entry, '\n', #begin + 1, true) + 1)
      if is_paid(mine[claim]) then paid = paid + 1 end
      entries[claim] = nil   -- named twice: gone the second time
    else
      gone[#gone + 1] = claim
    end
  end
  in_steps('HDEL', in_flight, taken)
  if paid > 0 then redis.call('HINCRBY', meta, 'paid_in_flight', -paid) end
  return mine, gone, #taken
end
