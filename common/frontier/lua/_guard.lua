-- Shared by every script: prepended by the loader (scripts.py).
-- Refusals are one-element replies: MISSING no such shard; VERSION another data layout; RUN the server was
-- restarted since this shard was verified (re-verify the lock, then adopt); STALE an older token or term.
-- Numbers stay below 2^53, which Lua holds exactly: ms and us of the epoch, etcd revisions, counts.

-- The shard's clock in ms. It never goes back by much: where the server's clock was set back, claim keeps
-- the difference as skew, so that no host waits for the old time to come again.
local function now_ms(meta)
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000) + tonumber(redis.call('HGET', meta, 'skew') or 0)
end

-- What a reader of results must match: the shard exists, in this layout.
local function presence_refusal(meta, version)
  local present = redis.call('HGET', meta, 'version')
  if not present then return { 'MISSING' } end
  if present ~= version then return { 'VERSION', present } end
  return nil
end

-- What any caller must match: the shard exists, in this layout, on the server run the caller knows.
local function shard_refusal(meta, version, run)
  local m = redis.call('HMGET', meta, 'version', 'run', 'state', 'fence')
  if not m[1] then return { 'MISSING' } end
  if m[1] ~= version then return { 'VERSION', m[1] } end
  if m[2] ~= run then return { 'RUN' } end
  return nil, m[3], tonumber(m[4])
end

-- What an owner must match as well: no newer token was seen. A newer one is stored, so that the old
-- owner is fenced from this moment on.
local function owner_refusal(meta, version, run, token)
  local refusal, state, fence = shard_refusal(meta, version, run)
  if refusal then return refusal end
  if tonumber(token) < fence then return { 'STALE' } end
  if tonumber(token) > fence then redis.call('HSET', meta, 'fence', token) end
  return nil, state
end

-- What the master and the command line must match: term and job revision not lower than seen.
-- A term of 0 (command line) is compared by revision alone.
local function master_refusal(meta, version, term, revision)
  local m = redis.call('HMGET', meta, 'version', 'term', 'revision', 'state')
  if not m[1] then return { 'MISSING' } end
  if m[1] ~= version then return { 'VERSION', m[1] } end
  local t, r = tonumber(term), tonumber(revision)
  if (t > 0 and t < tonumber(m[2])) or r < tonumber(m[3]) then return { 'STALE' } end
  if t > tonumber(m[2]) then redis.call('HSET', meta, 'term', term) end
  if r > tonumber(m[3]) then redis.call('HSET', meta, 'revision', revision) end
  return nil, m[4]
end
