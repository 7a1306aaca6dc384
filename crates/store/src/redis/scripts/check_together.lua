-- Counts the limits of one rule, all or nothing: hits that one of them rejects are counted by none. ARGV has runs, and
-- then an argument without runs for each key. Returns each key's state before, and the time.
local READ = { 0, 0 }
local runs = { unpacked('<' .. string.rep('i8I4', #ARGV[1] / 12), ARGV[1]) }
local logs, limits, is_count, old, current, seconds, replies = {}, {}, {}, {}, {}, {}, {}

-- Nothing is changed before the values of all keys are known to be valid.
for i, key in ipairs(KEYS) do
  local argument = ARGV[i + 1]
  local letter = argument:sub(1, 1)
  if letter == 'l' then
    logs[i] = log_limit(argument)
    replies[i] = count_log(key, logs[i])
    if replies[i].err then
      return replies[i]
    end
  else
    limits[i], is_count[i], old[i] = algorithms[letter](argument), letter == 'c', call('GET', key)
    if limits[i](old[i], READ) == false then
      return is_count[i] and { err = 'ERR value is not an integer or out of range' } or FOREIGN
    end
    replies[i], current[i] = is_count[i] and count_of(old[i]) or old[i], old[i]
  end
end

for run = 1, #runs - 1, 2 do
  local hits, times = runs[run], runs[run + 1]
  local fit, fits_here, states, expiries = times, {}, {}, {}
  for i, key in ipairs(KEYS) do
    if logs[i] then
      logs[i].runs = { hits, times }
      local _, _, fits = count_log(key, logs[i], true)
      fits_here[i] = fits
    else
      local state, expiry, _, fits = limits[i](current[i], { hits, times })
      fits_here[i], states[i], expiries[i] = fits, state, expiry
    end
    fit = math.min(fit, fits_here[i])
  end
  for i, key in ipairs(KEYS) do
    if logs[i] then
      local of_run = count_log(key, logs[i], false, fit)
      table.insert(replies[i], of_run[2])
      table.insert(replies[i], of_run[3])
    else
      if fits_here[i] > fit then
        states[i], expiries[i] = limits[i](current[i], { hits, fit })
      end
      if states[i] then
        -- A state whose key does not expire too early has no new expiry.
        local rest = not is_count[i] and current[i] and current[i]:sub(#states[i] + 1) or ''
        current[i], seconds[i] = states[i] .. rest, expiries[i] or seconds[i]
      end
    end
  end
end

for i, key in ipairs(KEYS) do
  if logs[i] or current[i] == old[i] then
    -- Logs are stored while they are counted.
  elseif is_count[i] then
    keep_count(key, old[i], current[i], seconds[i])
  else
    keep(key, old[i], current[i], seconds[i])
  end
end
replies[#KEYS + 1], replies[#KEYS + 2] = now[1], now[2]
return replies
