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

-- Frees the slot of a claim if it is still held; returns its host and delay, or nil.
local function free_slot(slots, slot, busy, claim)
  if redis.call('ZREM', slots, claim) == 0 then return nil end
  local value = redis.call('HGET', slot, claim)
  redis.call('HDEL', slot, claim)
  local token, delay, host = string.match(value, '^(%S+) (%S+) (.*)$')
  if redis.call('HINCRBY', busy, host, -1) <= 0 then redis.call('HDEL', busy, host) end
  return host, tonumber(delay), tonumber(token)
end

-- The response of a claim has ended `ago` ms before now (-1: no request was sent).
local function end_request(ready, slots, slot, busy, pace, claim, host, ago, delay, now)
  free_slot(slots, slot, busy, claim)
  if ago >= 0 and delay > 0 then postpone(ready, pace, host, now - ago + delay) end
end

-- An in-flight entry is "token\nhost\nitem".
local function parse_in_flight(entry)
  local a = string.find(entry, '\n', 1, true)
  local b = string.find(entry, '\n', a + 1, true)
  return string.sub(entry, 1, a - 1), string.sub(entry, a + 1, b - 1), string.sub(entry, b + 1)
end

-- Takes a claim out of flight if it is this owner's; returns its item, or nil when it is gone.
local function take_in_flight(in_flight, claim, token)
  local entry = redis.call('HGET', in_flight, claim)
  if not entry then return nil end
  local owner, _, item = parse_in_flight(entry)
  if owner ~= token then return nil end
  redis.call('HDEL', in_flight, claim)
  return item
end
