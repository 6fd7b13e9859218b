-- permit: a holder (one job in one worker process) says what it has on the wire to a host, and asks for more.
-- KEYS[1] pace hash of the host, or of a group (the hosts of an address or a registered domain)
-- ARGV[1] server run      ARGV[2] when the server began, in ms, if a restart may have lost data (0 = it may not)
-- ARGV[3] holder (token, ':', nonce)          ARGV[4] serial of this call, above that of every earlier one
-- ARGV[5] tokens below this belong to processes known dead: their requests are over
-- ARGV[6] requests on the wire                ARGV[7] ms since the last one started (-1: none since the last call)
-- ARGV[8] ms since a response ended (-1: none since the last call)
-- ARGV[9] ms from then on for which the host asked to be left alone (0 = it did not)
-- ARGV[10] permits wanted                     ARGV[11] ms the holder can wait for the start of the first
-- ARGV[12] delay in ms (-1: the holder leaves)    ARGV[13] requests at once    ARGV[14] ms a request may last
-- ARGV[15] ms a permit may be used for
-- Returns {OK, permits, ms until they may be used, delay in force, ms to wait before asking again, other holders,
--   ms of the server's clock}
--   | STALE (a later call was seen)
--   Without a delay in force a permit is used again and again until its time is over; with one, once.
-- Invariants: never more permits and requests than the strictest active holder allows, never a start before the
--   strictest delay is over; from the end of a response where one request is allowed, else from the start of one.
--   What a holder is thought to have is replaced by what it says, so a lost reply does no lasting harm. Who says
--   nothing is thought to use its permits up to their last moment, and its requests to last as long as they may.
--   Nobody gets a permit past one who came first and is not late. The key expires when nothing in it matters.
local ACTIVE = 5000        -- ms for which a holder's limits hold after the time it was told to come back at
local PATIENCE = 2000      -- ms after that time for which its place is kept
local LONGEST = 86400000   -- ms: no delay and no request to be left alone is longer
local LOOK = 200           -- ms to wait where it is not known when a permit comes free
local KEEP = 60000         -- ms for which the last request is known to whoever comes next
local MARKS = { run = true, start = true, ['end'] = true, pause = true, ticket = true }

local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local born, me, serial, dead_below = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local wire, started, ended = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local pause_ms, want, patience = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local delay, per, lasts, valid = tonumber(ARGV[12]), tonumber(ARGV[13]), tonumber(ARGV[14]), tonumber(ARGV[15])
local leaves = delay < 0

local mark, holders = {}, {}
local flat = redis.call('HGETALL', KEYS[1])
for i = 1, #flat, 2 do
  if MARKS[flat[i]] then
    mark[flat[i]] = flat[i + 1]
  else
    local n = {}
    for number in string.gmatch(flat[i + 1], '%S+') do n[#n + 1] = tonumber(number) end
    -- Where the server's clock was set back, all times of a holder move with its last call.
    local seen = math.min(n[3], now)
    holders[flat[i]] = {
      serial = n[1], slots = n[2], send_by = n[4] > 0 and seen + n[4] or 0, over = seen + n[5], delay = n[6], per = n[7],
      back = seen + n[8] + PATIENCE, till = seen + n[8] + n[6] + ACTIVE, ticket = n[9],
    }
  end
end
if holders[me] and holders[me].serial >= serial then return { 'STALE' } end

-- Nothing that happened can lie further ahead than a permit reaches.
local function past(at, ahead) return math.min(tonumber(at or 0), now + ahead) end
local last_start, last_end = past(mark['start'], 2 * valid), past(mark['end'], 1)
local pause, ticket = past(mark['pause'], LONGEST), tonumber(mark['ticket'] or 0)
if born > 0 and mark['run'] ~= ARGV[1] then
  local rest = mark['run'] and now or math.min(born, now)
  last_start, last_end = math.max(last_start, rest), math.max(last_end, rest)
end

-- What the others have, and what they ask for.
local gone, others, live, windows, waiting, before_me, claimants = {}, 0, 0, 0, 0, 0, 1
local strict, fewest = math.max(delay, 0), leaves and math.huge or per
local mine = holders[me] or { ticket = 0, back = 0 }
if mine.back < now then mine.ticket = 0 end
for name, one in pairs(holders) do
  if name ~= me then
    local is_dead = tonumber(string.match(name, '^%d+')) < dead_below
    if one.slots > 0 and (is_dead or one.over <= now) then
      last_start = math.max(last_start, math.min(one.send_by, now))
      last_end = math.max(last_end, math.min(one.over, now))
      one.slots = 0
    end
    if is_dead or (one.slots == 0 and one.till <= now) then
      gone[#gone + 1] = name
    else
      live = live + 1
      others = others + one.slots
      if one.slots > 0 then windows = math.max(windows, one.send_by) end
      if one.till > now then
        strict, fewest = math.max(strict, one.delay), math.min(fewest, one.per)
      end
      local waits = one.ticket > 0 and one.back >= now
      if waits then
        waiting = waiting + 1
        if mine.ticket == 0 or one.ticket < mine.ticket then before_me = before_me + 1 end
      end
      if waits or one.slots > 0 then claimants = claimants + 1 end
    end
  end
end

-- What this holder tells. Rounded so that a time is never earlier than it was.
if started >= 0 then last_start = math.max(last_start, now - started + 1) end
if ended >= 0 then last_end = math.max(last_end, now - ended + 1) end
if pause_ms > 0 then pause = math.max(pause, now - math.max(ended, 0) + math.min(pause_ms, LONGEST)) end

local room, at, granted, wait = fewest - others - wire - before_me, math.max(now, pause), 0, 0
if want > 0 and strict > 0 then
  at = math.max(at, (fewest == 1 and last_end or math.max(last_start, windows)) + strict)
  if room > 0 and at - now <= patience then
    granted = 1
  else
    wait = math.max(at - now, room > 0 and 1 or math.max(LOOK / 4, strict * (before_me + 1)))
  end
elseif want > 0 then
  if waiting > 0 then room = math.min(room, math.max(1, math.floor(fewest / claimants)) - wire) end
  if at - now <= patience then granted = math.max(0, math.min(want, room)) end
  if granted == 0 then wait = math.max(at - now, LOOK) end
end

if granted > 0 or want == 0 or leaves then
  mine.ticket = (want == 0 and not leaves) and mine.ticket or 0
elseif mine.ticket == 0 then
  ticket = ticket + 1
  mine.ticket = ticket
end
local send_in = granted > 0 and at - now + valid or 0
local slots = wire + granted
local over_in = slots > 0 and send_in + lasts or 0

for i = 1, #gone do redis.call('HDEL', KEYS[1], gone[i]) end
redis.call('HSET', KEYS[1], 'run', ARGV[1], 'start', last_start, 'end', last_end, 'pause', pause, 'ticket', ticket)
local keep = math.max(last_start, last_end) + strict
keep = math.max(keep, pause, now + over_in, now + KEEP)
for _, one in pairs(holders) do keep = math.max(keep, one.over or 0, one.till or 0) end
if leaves and slots == 0 then
  redis.call('HDEL', KEYS[1], me)
else
  local told = want == 0 and mine.ticket > 0 and mine.back - PATIENCE - now or wait
  redis.call('HSET', KEYS[1], me, string.format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f',
    serial, slots, now, send_in, over_in, math.max(delay, 0), per, told, mine.ticket))
  keep = math.max(keep, now + told + math.max(delay, 0) + ACTIVE)
end
redis.call('PEXPIRE', KEYS[1], math.ceil(keep - now) + 1000)
return { 'OK', granted, at - now, strict, math.ceil(wait), live, now }
