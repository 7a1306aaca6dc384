-- Counts every check, unless one of them would be over its limit: then only those that would be.
-- What is given back is given back in either case. Returns each counter as it is afterwards.
local counts, over = {}, {}
local any_over = false
for i, key in ipairs(KEYS) do
  counts[i] = tonumber(redis.call('GET', key) or '0')
  local hits, limit = tonumber(ARGV[3 * i - 2]), tonumber(ARGV[3 * i - 1])
  over[i] = math.max(counts[i] + hits, 0) > limit
  any_over = any_over or over[i]
end
for i, key in ipairs(KEYS) do
  local hits, seconds = tonumber(ARGV[3 * i - 2]), ARGV[3 * i]
  if hits > 0 and any_over and not over[i] then
    hits = 0
  end
  -- A key may be there twice: its count is read anew.
  local count = tonumber(redis.call('GET', key) or '0')
  hits = math.max(hits, -count)
  if hits ~= 0 then
    local made = redis.call('EXISTS', key) == 0
    -- A counter that can hold no more says so, and is left as it is.
    local after = redis.pcall('INCRBY', key, string.format('%.0f', hits))
    counts[i] = type(after) == 'number' and after or count
    -- Beyond 2^62, which is over every limit, a double may be no integer of Redis.
    counts[i] = math.min(counts[i], 4611686018427387904)
    if made then
      redis.call('EXPIRE', key, seconds)
    end
  else
    counts[i] = math.min(count, 4611686018427387904)
  end
end
return counts
