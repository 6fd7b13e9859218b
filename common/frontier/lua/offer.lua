-- offer: admits URLs never seen before to a shard's frontier. Anyone may offer; repeating is harmless.
-- @use _guard _hosts
-- KEYS[1] meta hash          KEYS[2] ready zset      KEYS[3] pace zset     KEYS[4] hll
-- KEYS[5] busy hash          KEYS[6..5+H] host queues (lists)              then seen-set keys
-- ARGV[1] layout version     ARGV[2] server run      ARGV[3] H hosts       ARGV[4] N URLs
-- ARGV[5] L layers           ARGV[6] F filters a layer (1 exact, 2 bloom)  ARGV[7] E 1 = fingerprints confirm
-- ARGV[8] capacity of the newest layer (URLs)        ARGV[9] requests at once per host
-- ARGV[10..9+H] host keys; then per URL: host index, item, fingerprint, F x 8 bytes of hash, and per
--   layer, newest first: F x (key index, first byte, last byte of a 32-byte block), fingerprint key index if E
-- Returns {OK, admitted, discovered} | {LAYERS, L} (ask again for L layers) | {RETRY} (sealed)
--   | {CLOSED} | MISSING | VERSION | RUN
-- Invariants: the seen-set is read before the first write; queue, then seen-set, then counters are written.
local refusal, state = shard_refusal(KEYS[1], ARGV[1], ARGV[2])
if refusal then return refusal end
if state == 'sealed' then return { 'RETRY' } end
if state == 'closed' or state == 'cancelled' then return { 'CLOSED' } end
local layers = redis.call('HGET', KEYS[1], 'layers')
if layers ~= ARGV[5] then return { 'LAYERS', tonumber(layers) } end

local H, N, L, F = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(layers), tonumber(ARGV[6])
local exact = ARGV[7] == '1'
local per_layer = 3 * F + (exact and 1 or 0)
local per_url = 3 + F + L * per_layer
local first = 10 + H
local WORDS = '<I4I4I4I4I4I4I4I4'
local band, bor, lshift, byte = bit.band, bit.bor, bit.lshift, string.byte

local blocks = {}   -- "key index:first byte" -> 8 words, read once a script
local function block_at(at)
  local name = ARGV[at] .. ':' .. ARGV[at + 1]
  local words = blocks[name]
  if not words then
    local raw = redis.call('GETRANGE', KEYS[tonumber(ARGV[at])], ARGV[at + 1], ARGV[at + 2])
    if #raw == 32 then words = { struct.unpack(WORDS, raw) } else words = { 0, 0, 0, 0, 0, 0, 0, 0 } end
    blocks[name] = words
  end
  return words
end

local function holds(words, bits)
  for i = 1, 8 do
    if band(words[i], lshift(1, band(byte(bits, i), 31))) == 0 then return false end
  end
  return true
end

local function is_seen(at)
  for layer = 0, L - 1 do
    local base = at + 3 + F + layer * per_layer
    local hit = true
    for f = 0, F - 1 do
      if not holds(block_at(base + 3 * f), ARGV[at + 3 + f]) then hit = false break end
    end
    if hit and exact then
      hit = redis.call('SISMEMBER', KEYS[tonumber(ARGV[base + 3 * F])], ARGV[at + 2]) == 1
    end
    if hit then return true end
  end
  return false
end

local fingerprints, fresh, queued, taken = {}, {}, {}, {}
for n = 0, N - 1 do
  local at = first + n * per_url
  local fingerprint = ARGV[at + 2]
  fingerprints[n + 1] = fingerprint
  if not taken[fingerprint] and not is_seen(at) then
    taken[fingerprint] = true
    fresh[#fresh + 1] = at
    local h = tonumber(ARGV[at])
    local list = queued[h]
    if not list then list = {}; queued[h] = list end
    list[#list + 1] = ARGV[at + 1]
  end
end

-- Most offers bring nothing new; they change nothing, so that the server has nothing to sync to its disk.
for i = 1, N, 1000 do
  redis.call('PFADD', KEYS[4], unpack(fingerprints, i, math.min(i + 999, N)))
end
if #fresh == 0 then return { 'OK', 0, tonumber(redis.call('HGET', KEYS[1], 'discovered')) } end

local now = now_ms(KEYS[1])
for h, items in pairs(queued) do
  for i = 1, #items, 1000 do
    redis.call('RPUSH', KEYS[5 + h], unpack(items, i, math.min(i + 999, #items)))
  end
  local host = ARGV[9 + h]
  if tonumber(redis.call('HGET', KEYS[5], host) or 0) < tonumber(ARGV[9])
    and not redis.call('ZSCORE', KEYS[2], host) then
    make_ready(KEYS[2], KEYS[3], host, now)
  end
end
for _, at in ipairs(fresh) do
  local base = at + 3 + F
  for f = 0, F - 1 do
    local words, bits = block_at(base + 3 * f), ARGV[at + 3 + f]
    for i = 1, 8 do words[i] = bor(words[i], lshift(1, band(byte(bits, i), 31))) % 4294967296 end
    redis.call('SETRANGE', KEYS[tonumber(ARGV[base + 3 * f])], ARGV[base + 3 * f + 1],
      struct.pack(WORDS, unpack(words)))
  end
  if exact then redis.call('SADD', KEYS[tonumber(ARGV[base + 3 * F])], ARGV[at + 2]) end
end
local discovered = redis.call('HINCRBY', KEYS[1], 'discovered', #fresh)
redis.call('HINCRBY', KEYS[1], 'queued', #fresh)
if redis.call('HINCRBY', KEYS[1], 'inserted', #fresh) >= tonumber(ARGV[8]) then
  redis.call('HSET', KEYS[1], 'inserted', 0)
  redis.call('HINCRBY', KEYS[1], 'layers', 1)
end
return { 'OK', #fresh, discovered }
