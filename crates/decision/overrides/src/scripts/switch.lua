-- Replaces the hash by another one, and publishes that. Overrides with a later version than in the other one keep it.
-- Returns the new version, or nil if the commit or a part of the other hash expired or was lost, or if everything changed.
-- KEYS: the hash, the versions of its overrides, the commit, the other hash, the new name of the old one. ARGV: the channel,
-- the caller's version, the identifier of the commit, the number of overrides, whether they are an import; the version up
-- to which those of the other hash are not listed, then identifiers and versions.
local least = tonumber(ARGV[6])
if redis.call('GET', KEYS[3]) ~= ARGV[3] or redis.call('HLEN', KEYS[4]) ~= tonumber(ARGV[4])
  or (floor or 0) > least then
  return nil
end
local versions = {['@'] = ARGV[6]}
for i = 7, #ARGV, 2 do
  versions[ARGV[i]] = ARGV[i + 1]
end
local listed = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
for i = 1, #listed, 2 do
  local id, version = listed[i], listed[i + 1]
  if tonumber(version) > tonumber(versions[id] or least) then
    versions[id] = version
    local value = redis.call('HGET', KEYS[1], id)
    if value then
      redis.call('HSET', KEYS[4], id, value)
    else
      redis.call('HDEL', KEYS[4], id)
    end
  end
end
redis.call('DEL', KEYS[2], KEYS[3])
-- An import changes everything.
for id, version in pairs(ARGV[5] == 'import' and {['@'] = after} or versions) do
  redis.call('ZADD', KEYS[2], version, id)
end
redis.call('PERSIST', KEYS[4])
if redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('RENAME', KEYS[1], KEYS[5])
end
redis.call('RENAME', KEYS[4], KEYS[1])
return publish('*')
