-- offer: admits URLs never seen before to a shard's frontier. Anyone may offer; repeating is harmless.
-- @use _guard _hosts
-- KEYS[1] meta hash          KEYS[2] ready zset      KEYS[3] pace zset     KEYS[4] hll
-- KEYS[5] busy hash          KEYS[6..5+H] host queues (lists); then per layer, newest first, the pieces of its
--   filter (strings); then, if fingerprints confirm, per URL its bucket in each layer, newest first (sets)
-- ARGV[1] layout version     ARGV[2] server run      ARGV[3] H hosts       ARGV[4] words a block
-- ARGV[5] L layers           ARGV[6] 1 = fingerprints confirm (exact)      ARGV[7] requests at once per host
-- ARGV[8] capacity of the newest layer (URLs)        ARGV[9..8+L] chunks in the filter of each layer, newest first
-- ARGV[9+L..] 2 x H: host key, its URLs; then per URL, host by host: fingerprint, its bits and its item in one
-- The bits: u32 spot (which chunk), then per block of the URL: u16 block in the chunk, and pairs of u8 word in
--   the block (from 1), i32 mask; one block of one pair (exact) or two blocks of three (bloom)
-- Returns {OK, admitted, discovered} | {LAYERS, L} (ask again for L layers) | {RETRY} (sealed)
--   | {CLOSED} | MISSING | VERSION | RUN
-- Invariants: the seen-set is read before the first write; queue, then seen-set, then counters are written.
--   In mode exact the newest layer is asked by its fingerprints at once, which costs what its filter would.
local refusal, state = shard_refusal(KEYS[1], ARGV[1], ARGV[2])
if refusal then return refusal end
if state == 'sealed' then return { 'RETRY' } end
if state == 'closed' or state == 'cancelled' then return { 'CLOSED' } end
local layers = redis.call('HGET', KEYS[1], 'layers')
if layers ~= ARGV[5] then return { 'LAYERS', tonumber(layers) } end

local call, unpack_bits, band, sub, floor = redis.call, struct.unpack, bit.band, string.sub, math.floor
local H, L, exact = tonumber(ARGV[3]), tonumber(layers), ARGV[6] == '1'
local block_bytes = 4 * tonumber(ARGV[4])
local CHUNK, PIECE_CHUNKS = 1024, 8192
local BITS_BYTES = exact and 11 or 38
local BLOCK_FORM = exact and '<i4' or '<i4i4i4i4i4i4i4i4i4i4i4i4i4i4i4i4'

local chunks, pieces = {}, {}   -- by layer, 1 = newest: how many chunks; index of its first piece in KEYS
local buckets = 6 + H           -- index in KEYS of the first URL's first bucket
for layer = 1, L do
  chunks[layer] = tonumber(ARGV[8 + layer])
  pieces[layer] = buckets
  buckets = buckets + math.ceil(chunks[layer] / PIECE_CHUNKS)
end

local cached = {}   -- by layer: chunk number -> its bytes, read once a script
for layer = 1, L do cached[layer] = {} end
local function chunk_of(layer, chunk)
  local raw = cached[layer][chunk]
  if not raw then
    local at = chunk % PIECE_CHUNKS
    raw = call('GETRANGE', KEYS[pieces[layer] + (chunk - at) / PIECE_CHUNKS], at * CHUNK, at * CHUNK + CHUNK - 1)
    if #raw < CHUNK then raw = raw .. string.rep('\0', CHUNK - #raw) end
    cached[layer][chunk] = raw
  end
  return raw
end

local function holds_exact(layer, bits)
  local spot, block, _, mask = unpack_bits('<I4I2Bi4', bits)
  local raw = chunk_of(layer, floor(spot * chunks[layer] / 4294967296))
  return band(unpack_bits('<i4', raw, 4 * block + 1), mask) == mask
end

local function is_seen_bloom(bits)
  local spot, b1, w1, m1, w2, m2, w3, m3, b2, w4, m4, w5, m5, w6, m6 =
    unpack_bits('<I4I2Bi4Bi4Bi4I2Bi4Bi4Bi4', bits)
  b1, b2 = 64 * b1 - 3, 64 * b2 - 3
  for layer = 1, L do
    local chunk = floor(spot * chunks[layer] / 4294967296)
    local raw = cached[layer][chunk] or chunk_of(layer, chunk)
    if band(unpack_bits('<i4', raw, b1 + 4 * w1), m1) == m1
      and band(unpack_bits('<i4', raw, b1 + 4 * w2), m2) == m2
      and band(unpack_bits('<i4', raw, b1 + 4 * w3), m3) == m3
      and band(unpack_bits('<i4', raw, b2 + 4 * w4), m4) == m4
      and band(unpack_bits('<i4', raw, b2 + 4 * w5), m5) == m5
      and band(unpack_bits('<i4', raw, b2 + 4 * w6), m6) == m6 then
      return true
    end
  end
  return false
end

local function is_seen_exact(n, fingerprint, bits)
  local at = buckets + (n - 1) * L
  if call('SISMEMBER', KEYS[at], fingerprint) == 1 then return true end
  for layer = 2, L do
    if holds_exact(layer, bits) and call('SISMEMBER', KEYS[at + layer - 1], fingerprint) == 1 then return true end
  end
  return false
end

local counted, fresh, queued, taken = {}, {}, {}, {}   -- counted: fingerprints for the hll
local first_url = 9 + L + 2 * H   -- index in ARGV
local n, at = 0, first_url
for h = 1, H do
  for _ = 1, tonumber(ARGV[8 + L + 2 * h]) do
    local fingerprint, bits = ARGV[at], ARGV[at + 1]
    n = n + 1
    local is_seen
    if exact then
      is_seen = is_seen_exact(n, fingerprint, bits)
    else
      is_seen = is_seen_bloom(bits)
      counted[n] = fingerprint
    end
    if not is_seen and not taken[fingerprint] then
      taken[fingerprint] = true
      fresh[#fresh + 1] = n
      if exact then counted[#fresh] = fingerprint end
      local list = queued[h]
      if not list then list = {}; queued[h] = list end
      list[#list + 1] = sub(bits, BITS_BYTES + 1)
    end
    at = at + 2
  end
end

-- Most offers bring nothing new; they change nothing, so that the server has nothing to sync to its disk.
-- A fingerprint that was confirmed is in the hll since it was admitted.
for i = 1, #counted, 1000 do call('PFADD', KEYS[4], unpack(counted, i, math.min(i + 999, #counted))) end
if #fresh == 0 then return { 'OK', 0, tonumber(call('HGET', KEYS[1], 'discovered')) } end

local now = now_ms(KEYS[1])
for h, items in pairs(queued) do
  for i = 1, #items, 1000 do
    call('RPUSH', KEYS[5 + h], unpack(items, i, math.min(i + 999, #items)))
  end
  local host = ARGV[7 + L + 2 * h]
  if not call('ZSCORE', KEYS[2], host) then
    ready_if_free(KEYS[2], KEYS[3], KEYS[5], host, tonumber(ARGV[7]), now)
  end
end

local blocks, dirty = {}, {}   -- first byte of a block in its layer -> its words; in order of first use
local function set_bits(base, words, from, bits)
  local block = blocks[base]
  if not block then
    block = { unpack_bits(BLOCK_FORM, chunk_of(1, floor(base / CHUNK)), base % CHUNK + 1) }
    blocks[base] = block
    dirty[#dirty + 1] = base
  end
  for pair = 0, words - 1 do
    local word, mask = unpack_bits('<Bi4', bits, from + 5 * pair)
    block[word] = bit.bor(block[word], mask)
  end
end
for _, url in ipairs(fresh) do
  local bits = ARGV[first_url + 2 * url - 1]
  local spot, block = unpack_bits('<I4I2', bits)
  local base = floor(spot * chunks[1] / 4294967296) * CHUNK
  if exact then
    set_bits(base + block * block_bytes, 1, 7, bits)
    call('SADD', KEYS[buckets + (url - 1) * L], ARGV[first_url + 2 * url - 2])
  else
    set_bits(base + block * block_bytes, 3, 7, bits)
    set_bits(base + unpack_bits('<I2', bits, 22) * block_bytes, 3, 24, bits)
  end
end
local whole = {}   -- pieces that are allocated at their full size: growing bit by bit would double it
for _, base in ipairs(dirty) do
  local inside = base % (PIECE_CHUNKS * CHUNK)
  local piece = (base - inside) / (PIECE_CHUNKS * CHUNK)
  if not whole[piece] then
    local size = math.min(chunks[1] - piece * PIECE_CHUNKS, PIECE_CHUNKS) * CHUNK
    if call('STRLEN', KEYS[pieces[1] + piece]) < size then
      call('SETRANGE', KEYS[pieces[1] + piece], size - 1, '\0')
    end
    whole[piece] = true
  end
  call('SETRANGE', KEYS[pieces[1] + piece], inside, struct.pack(BLOCK_FORM, unpack(blocks[base])))
end
local discovered = call('HINCRBY', KEYS[1], 'discovered', #fresh)
call('HINCRBY', KEYS[1], 'queued', #fresh)
if call('HINCRBY', KEYS[1], 'inserted', #fresh) >= tonumber(ARGV[8]) then
  call('HSET', KEYS[1], 'inserted', 0)
  call('HINCRBY', KEYS[1], 'layers', 1)
end
return { 'OK', #fresh, discovered }
