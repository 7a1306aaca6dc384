-- Counts the fixed windows of one rule, all or nothing: what does not fit into every window is counted in none.
-- ARGV holds for each key its limit and the seconds that it lives, and then runs: hits (negative when given back),
-- and how many callers take so many. Returns the counters as they were: by these the caller tells everyone who
-- asked what came of it.
local counts, after, is_new = {}, {}, {}
for i, key in ipairs(KEYS) do
  local text = redis.call('GET', key)
  if text and not string.find(text, '^-?%d+$') then
    return { err = 'ERR value is not an integer or out of range' }
  end
  -- No more than a double counts exactly.
  counts[i] = math.max(math.min(tonumber(text or '0'), 9007199254740992), 0)
  after[i], is_new[i] = counts[i], not text
end
for run = 2 * #KEYS + 1, #ARGV, 2 do
  local hits, times = tonumber(ARGV[run]), tonumber(ARGV[run + 1])
  if hits > 0 then
    for i = 1, #KEYS do
      local fit = (tonumber(ARGV[2 * i - 1]) - after[i]) / hits
      times = math.min(times, math.max(fit - fit % 1, 0))
    end
  end
  for i = 1, #KEYS do
    after[i] = math.max(after[i] + hits * times, 0)
  end
end
for i, key in ipairs(KEYS) do
  local added = string.format('%.0f', after[i] - counts[i])
  if after[i] == counts[i] then
    -- Nothing has changed, and what is not there is not made.
  elseif is_new[i] then
    redis.call('SET', key, added, 'EX', ARGV[2 * i])
  else
    redis.call('INCRBY', key, added)
  end
end
return counts
