-- create: the master brings a shard of a new job into being; an existing one gets state and fence as by apply.
-- @use _guard
-- KEYS[1] meta hash
-- ARGV[1] layout version  ARGV[2] server run  ARGV[3] term  ARGV[4] job revision  ARGV[5] state  ARGV[6] grant
-- Returns {OK, 1 if created} | STALE VERSION
-- Invariants: called only for a job that has never started, so that a lost shard is never recreated empty.
if redis.call('EXISTS', KEYS[1]) == 1 then
  local refusal = master_refusal(KEYS[1], ARGV[1], ARGV[3], ARGV[4])
  if refusal then return refusal end
  redis.call('HSET', KEYS[1], 'state', ARGV[5])
  return { 'OK', 0 }
end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'run', ARGV[2], 'term', ARGV[3], 'revision', ARGV[4],
  'state', ARGV[5], 'grant', ARGV[6], 'fence', 0, 'quiet', 0, 'claims', 0, 'layers', 1, 'inserted', 0,
  'discovered', 0, 'queued', 0, 'delayed', 0, 'in_flight', 0, 'fetched', 0, 'not_modified', 0,
  'redirected', 0, 'denied', 0, 'failed', 0, 'dead', 0, 'dropped', 0, 'filtered', 0, 'sitemaps', 0,
  'revisits', 0, 'revisiting', 0)
return { 'OK', 1 }
