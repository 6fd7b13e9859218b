-- offer: admits URLs never seen before to a shard's frontier. Anyone may offer; repeating is harmless.
-- @use _guard _hosts
-- KEYS[1] meta hash          KEYS[2] ready zset      KEYS[3] pace zset     KEYS[4] hll
-- KEYS[5] busy hash          KEYS[6..5+H] host queues (lists); then the buckets concerned (exact: sets; bloom: strings)
-- ARGV[1] layout version     ARGV[2] server run      ARGV[3] H hosts       ARGV[4] L layers
-- ARGV[5] 1 = exact, 0 = bloom                       ARGV[6] requests at once per host
-- ARGV[7] capacity of the newest layer (URLs)
-- ARGV[8] a place of each URL, host by host          ARGV[9] their items, one behind the other
-- ARGV[10..9+2H] per host: host key, its URLs        then per URL its fingerprint
-- A place: u32 first, u32 last byte of the item (from 1); u16 per layer, newest last: which of the buckets; bloom: u8
--   block in the bucket (from 1), six pairs of u8 first byte in the block (from 1, rising), i32 mask
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

local call, unpack_bits, band = redis.call, struct.unpack, bit.band
local H, L, exact = tonumber(ARGV[3]), tonumber(layers), ARGV[5] == '1'
local places, items = ARGV[8], ARGV[9]
local prints = 9 + 2 * H   -- index in ARGV before the first fingerprint
local PLACE = 8 + 2 * L + (exact and 0 or 31)

local function bucket_of(layer, n)   -- layer 1 = newest
  return 5 + H + unpack_bits('<I2', places, PLACE * (n - 1) + 9 + 2 * (L - layer))
end

local function is_seen_exact(n)
  local print = ARGV[prints + n]
  for layer = 1, L do
    if call('SISMEMBER', KEYS[bucket_of(layer, n)], print) == 1 then return true end
  end
  return false
end

-- Of the blocks of a bucket, as strings, so that Redis need not print them: first byte, last byte.
local FIRST, LAST = {}, {}
if not exact then
  FIRST = {
    '0', '144', '288', '432', '576', '720', '864', '1008', '1152', '1296', '1440', '1584', '1728', '1872', '2016',
    '2160', '2304', '2448', '2592', '2736', '2880', '3024', '3168', '3312', '3456', '3600', '3744', '3888', '4032',
    '4176', '4320', '4464', '4608', '4752', '4896', '5040', '5184', '5328', '5472', '5616', '5760', '5904', '6048',
    '6192', '6336', '6480', '6624', '6768', '6912', '7056', '7200', '7344', '7488', '7632', '7776', '7920',
  }
  LAST = {
    '143', '287', '431', '575', '719', '863', '1007', '1151', '1295', '1439', '1583', '1727', '1871', '2015', '2159',
    '2303', '2447', '2591', '2735', '2879', '3023', '3167', '3311', '3455', '3599', '3743', '3887', '4031', '4175',
    '4319', '4463', '4607', '4751', '4895', '5039', '5183', '5327', '5471', '5615', '5759', '5903', '6047', '6191',
    '6335', '6479', '6623', '6767', '6911', '7055', '7199', '7343', '7487', '7631', '7775', '7919', '8063',
  }
end
local BYTES = 144   -- of a block
local BLOCK_FORM = '<' .. string.rep('i4', 36)
local BITS_FORM = '<I2BBi4Bi4Bi4Bi4Bi4Bi4'   -- with the bucket in the newest layer before them

local blocks = {}   -- of URLs that are not seen, by URL: its block in the newest layer
local function is_seen_bloom(n)
  local newest
  local bucket, block, w1, m1, w2, m2, w3, m3, w4, m4, w5, m5, w6, m6 =
    unpack_bits(BITS_FORM, places, PLACE * n - 32)
  local first, last = FIRST[block], LAST[block]
  for layer = 1, L do
    local key = layer == 1 and 5 + H + bucket or bucket_of(layer, n)
    local raw = call('GETRANGE', KEYS[key], first, last)
    newest = newest or raw
    if #raw == BYTES
      and band(unpack_bits('<i4', raw, w1), m1) == m1 and band(unpack_bits('<i4', raw, w2), m2) == m2
      and band(unpack_bits('<i4', raw, w3), m3) == m3 and band(unpack_bits('<i4', raw, w4), m4) == m4
      and band(unpack_bits('<i4', raw, w5), m5) == m5 and band(unpack_bits('<i4', raw, w6), m6) == m6 then
      return true
    end
  end
  blocks[n] = newest
  return false
end

local is_seen = exact and is_seen_exact or is_seen_bloom
local fresh, fresh_prints, taken, queued, hosts = {}, {}, {}, {}, {}   -- queued: by host with something new, its items
local n = 0
for h = 1, H do
  local list = {}
  for _ = 1, tonumber(ARGV[9 + 2 * h]) do
    n = n + 1
    local print = ARGV[prints + n]
    if not is_seen(n) and not taken[print] then
      taken[print] = true
      fresh[#fresh + 1] = n
      fresh_prints[#fresh] = print
      local first, last = unpack_bits('<I4I4', places, PLACE * (n - 1) + 1)
      list[#list + 1] = string.sub(items, first, last)
    end
  end
  if #list > 0 then
    queued[h] = list
    hosts[#hosts + 1] = ARGV[8 + 2 * h]
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

local function admit_bloom()
  local changed = {}   -- by bucket: block -> its words
  for _, n in ipairs(fresh) do
    local bits = { unpack_bits(BITS_FORM, places, PLACE * n - 32) }
    local bucket, block = 5 + H + bits[1], bits[2]
    local inside = changed[bucket]
    if not inside then
      inside = {}
      changed[bucket] = inside
    end
    local words = inside[block]
    if not words then
      -- A bucket is allocated as a whole: growing bit by bit would double it.
      local raw = blocks[n]
      if raw == '' then
        call('SETRANGE', KEYS[bucket], #FIRST * BYTES - 1, '\0')
        raw = string.rep('\0', BYTES)
      end
      words = { unpack_bits(BLOCK_FORM, raw) }
      inside[block] = words
    end
    for at = 3, 13, 2 do
      local word = (bits[at] + 3) / 4
      words[word] = bit.bor(words[word], bits[at + 1])
    end
  end
  for bucket, inside in pairs(changed) do
    for block, words in pairs(inside) do
      call('SETRANGE', KEYS[bucket], FIRST[block], struct.pack(BLOCK_FORM, unpack(words, 1, 36)))
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
