-- Counts the fixed windows of one rule, all or nothing: hits that do not fit into every window are counted in none.
-- ARGV has the limit and the expiry in seconds of each key, and then runs: hits (negative for a refund), and the number
-- of callers with these hits. Returns the counters before.
local call, keys = redis.call, #KEYS
local counts, after, is_new = {}, {}, {}
for i = 1, keys do
  local text = call('GET', KEYS[i])
  if not text then
    counts[i], after[i], is_new[i] = 0, 0, true
  elseif string.find(text, '^-?%d+$') then
    -- At most the largest count that a double has exactly.
    local count = math.max(math.min(tonumber(text), 9007199254740992), 0)
    counts[i], after[i] = count, count
  else
    return { err = 'ERR value is not an integer or out of range' }
  end
end
for run = 2 * keys + 1, #ARGV, 2 do
  local hits, times = tonumber(ARGV[run]), tonumber(ARGV[run + 1])
  if hits > 0 then
    for i = 1, keys do
      local fit = (ARGV[2 * i - 1] - after[i]) / hits
      if fit < times then
        times = math.max(fit - fit % 1, 0)
      end
    end
  end
  if times > 0 then
    for i = 1, keys do
      after[i] = math.max(after[i] + hits * times, 0)
    end
  end
end
for i = 1, keys do
  local added = after[i] - counts[i]
  if added ~= 0 then
    added = string.format('%.0f', added)
    if is_new[i] then
      call('SET', KEYS[i], added, 'EX', ARGV[2 * i])
    else
      call('INCRBY', KEYS[i], added)
    end
  end
end
return counts
