-- offer: admits URLs never seen before to a shard's frontier. Anyone may offer; repeating is harmless.
-- @use _guard _hosts
-- KEYS[1] meta hash          KEYS[2] ready zset      KEYS[3] pace zset     KEYS[4] hll
-- KEYS[5] busy hash          KEYS[6..5+H] host queues (lists); then per layer, newest first: the pieces of its
--   filter (strings; bloom), or the buckets concerned (sets; exact)
-- ARGV[1] layout version     ARGV[2] server run      ARGV[3] H hosts       ARGV[4] L layers
-- ARGV[5] 1 = exact, 0 = bloom                       ARGV[6] requests at once per host
-- ARGV[7] capacity of the newest layer (URLs)        ARGV[8..7+L] chunks in the filter of each layer,
--   newest first (exact: 0)
-- ARGV[8+L] a place of each URL, host by host        ARGV[9+L] their items, one behind the other
-- ARGV[10+L..9+L+2H] per host: host key, its URLs    then per URL its fingerprint
-- A place: u32 bytes of the item; exact: u16 per layer, newest first: which of the buckets; bloom: u32 spot (which
--   chunk), u16 block in the chunk, eight pairs of u8 word in the block (from 1, rising), i32 mask
-- Returns {OK, admitted, discovered} | {LAYERS, L} (ask again for L layers) | {RETRY} (sealed)
--   | {CLOSED} | MISSING | VERSION | RUN
-- Invariants: the seen-set is read before the first write; queue, then seen-set, then counters are written.
-- What it costs is calls, misses of the processor's cache, numbers that Redis has to print, and bytes that Lua gets to
--   see, since it hashes every string from end to end.
local refusal, state = shard_refusal(KEYS[1], ARGV[1], ARGV[2])
if refusal then return refusal end
if state == 'sealed' then return { 'RETRY' } end
if state == 'closed' or state == 'cancelled' then return { 'CLOSED' } end
local m = redis.call('HMGET', KEYS[1], 'layers', 'discovered')
local layers, known = m[1], m[2]
if layers ~= ARGV[4] then return { 'LAYERS', tonumber(layers) } end

local call, unpack_bits, band, floor = redis.call, struct.unpack, bit.band, math.floor
local H, L, exact = tonumber(ARGV[3]), tonumber(layers), ARGV[5] == '1'
local places, items = ARGV[8 + L], ARGV[9 + L]
local prints = 9 + L + 2 * H   -- index in ARGV before the first fingerprint
local N = #ARGV - prints
local PLACE = exact and 4 + 2 * L or 50
local CHUNK, PIECE_CHUNKS, BLOCK = 768, 10922, 192   -- of a filter; bytes, but for PIECE_CHUNKS
local BLOCK_FORM = '<' .. string.rep('i4', 48)
local BITS_FORM = '<I4I2Bi4Bi4Bi4Bi4Bi4Bi4Bi4Bi4'

local function bucket_of(layer, n)
  return 5 + H + unpack_bits('<I2', places, PLACE * (n - 1) + 3 + 2 * layer)
end

local function is_seen_exact(n)
  local print = ARGV[prints + n]
  for layer = 1, L do
    if call('SISMEMBER', KEYS[bucket_of(layer, n)], print) == 1 then return true end
  end
  return false
end

local chunks, pieces = {}, {}   -- of filters, by layer, 1 = newest: how many; index in KEYS of the first piece
local key = 6 + H
for layer = 1, L do
  chunks[layer], pieces[layer] = tonumber(ARGV[7 + layer]), key
  key = key + math.ceil(chunks[layer] / PIECE_CHUNKS)
end

-- Where a block is in a layer: index of its piece in KEYS, its first byte there.
local function spot_of(layer, spot, block)
  local chunk = floor(spot * chunks[layer] / 4294967296)
  local at = chunk % PIECE_CHUNKS
  return pieces[layer] + (chunk - at) / PIECE_CHUNKS, at * CHUNK + block * BLOCK
end

local function block_of(piece, first)
  local raw = call('GETRANGE', KEYS[piece], first, first + BLOCK - 1)
  return #raw == BLOCK and raw or raw .. string.rep('\0', BLOCK - #raw)
end

local blocks = {}   -- of URLs that are not seen, by URL: its block in the newest layer
local function is_seen_bloom(n)
  local newest
  local spot, block, w1, m1, w2, m2, w3, m3, w4, m4, w5, m5, w6, m6, w7, m7, w8, m8 =
    unpack_bits(BITS_FORM, places, PLACE * (n - 1) + 5)
  for layer = 1, L do
    local raw = block_of(spot_of(layer, spot, block))
    newest = newest or raw
    if band(unpack_bits('<i4', raw, 4 * w1 - 3), m1) == m1
      and band(unpack_bits('<i4', raw, 4 * w2 - 3), m2) == m2
      and band(unpack_bits('<i4', raw, 4 * w3 - 3), m3) == m3
      and band(unpack_bits('<i4', raw, 4 * w4 - 3), m4) == m4
      and band(unpack_bits('<i4', raw, 4 * w5 - 3), m5) == m5
      and band(unpack_bits('<i4', raw, 4 * w6 - 3), m6) == m6
      and band(unpack_bits('<i4', raw, 4 * w7 - 3), m7) == m7
      and band(unpack_bits('<i4', raw, 4 * w8 - 3), m8) == m8 then
      return true
    end
  end
  blocks[n] = newest
  return false
end

local is_seen = exact and is_seen_exact or is_seen_bloom
local fresh, fresh_prints, taken, queued, hosts = {}, {}, {}, {}, {}   -- queued: by host with something new, its items
local n, item_at = 0, 1
for h = 1, H do
  local list = {}
  for _ = 1, tonumber(ARGV[9 + L + 2 * h]) do
    n = n + 1
    local print, size = ARGV[prints + n], unpack_bits('<I4', places, PLACE * (n - 1) + 1)
    if not is_seen(n) and not taken[print] then
      taken[print] = true
      fresh[#fresh + 1] = n
      fresh_prints[#fresh] = print
      list[#list + 1] = string.sub(items, item_at, item_at + size - 1)
    end
    item_at = item_at + size
  end
  if #list > 0 then
    queued[h] = list
    hosts[#hosts + 1] = ARGV[8 + L + 2 * h]
  end
end

-- Most offers bring nothing new; they change nothing, so that the server has nothing to sync to its disk.
-- A fingerprint that was found is in the hll since it was admitted; where a filter may err, all are counted.
if exact then
  in_steps('PFADD', KEYS[4], fresh_prints)
else
  for i = prints + 1, #ARGV, 1000 do call('PFADD', KEYS[4], unpack(ARGV, i, math.min(i + 999, #ARGV))) end
end
if #fresh == 0 then return { 'OK', 0, tonumber(known) } end

for h, list in pairs(queued) do in_steps('RPUSH', KEYS[5 + h], list) end
local new = {}   -- those that are in `ready` stay there as they are
for i, due in ipairs(answers('ZMSCORE', KEYS[2], hosts)) do
  if not due then new[#new + 1] = hosts[i] end
end
make_free_ready(KEYS[2], KEYS[3], KEYS[5], new, tonumber(ARGV[6]), now_ms(KEYS[1]))

local function admit_exact()
  local added = {}   -- by bucket
  for i, n in ipairs(fresh) do
    local bucket = bucket_of(1, n)
    local list = added[bucket]
    if list then list[#list + 1] = fresh_prints[i] else added[bucket] = { fresh_prints[i] } end
  end
  for bucket, list in pairs(added) do in_steps('SADD', KEYS[bucket], list) end
end

-- Allocates a piece at its full size: growing bit by bit would double it.
local function make_whole(piece)
  local size = math.min(chunks[1] - (piece - pieces[1]) * PIECE_CHUNKS, PIECE_CHUNKS) * CHUNK
  if call('STRLEN', KEYS[piece]) < size then call('SETRANGE', KEYS[piece], size - 1, '\0') end
end

local function admit_bloom()
  local changed = {}   -- by piece: first byte -> words of a block
  for _, n in ipairs(fresh) do
    local bits = { unpack_bits(BITS_FORM, places, PLACE * (n - 1) + 5) }
    local piece, first = spot_of(1, bits[1], bits[2])
    local inside = changed[piece]
    if not inside then
      make_whole(piece)
      inside = {}
      changed[piece] = inside
    end
    local words = inside[first]
    if not words then
      words = { unpack_bits(BLOCK_FORM, blocks[n]) }
      inside[first] = words
    end
    for at = 3, 17, 2 do words[bits[at]] = bit.bor(words[bits[at]], bits[at + 1]) end
  end
  for piece, inside in pairs(changed) do
    for first, words in pairs(inside) do
      call('SETRANGE', KEYS[piece], first, struct.pack(BLOCK_FORM, unpack(words, 1, 48)))
    end
  end
end

if exact then admit_exact() else admit_bloom() end
local discovered = call('HINCRBY', KEYS[1], 'discovered', #fresh)
call('HINCRBY', KEYS[1], 'queued', #fresh)
if call('HINCRBY', KEYS[1], 'inserted', #fresh) >= tonumber(ARGV[7]) then
  call('HSET', KEYS[1], 'inserted', 0)
  call('HINCRBY', KEYS[1], 'layers', 1)
end
return { 'OK', #fresh, discovered }
