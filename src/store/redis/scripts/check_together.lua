-- Asks the limits of one rule, all or nothing: what one of them refuses is counted by none. ARGV holds runs, and
-- then for each key what is asked of its limit, without runs. Returns what tells of each key how it was, and the
-- time: by these the caller tells everyone who asked what came of it.
local LOOK = { 0, 0 }
local runs = { unpacked('<' .. string.rep('i8I4', #ARGV[1] / 12), ARGV[1]) }
local logs, asks, is_count, old, present, seconds, told = {}, {}, {}, {}, {}, {}, {}

-- Nothing is changed before every key was found to be one that is kept here.
for i, key in ipairs(KEYS) do
  local asked = ARGV[i + 1]
  local letter = asked:sub(1, 1)
  if letter == 'l' then
    logs[i] = asked_of_log(asked)
    told[i] = ask_log(key, logs[i])
    if told[i].err then
      return told[i]
    end
  else
    asks[i], is_count[i], old[i] = algorithms[letter](asked), letter == 'c', call('GET', key)
    if asks[i](old[i], LOOK) == false then
      return is_count[i] and { err = 'ERR value is not an integer or out of range' } or FOREIGN
    end
    told[i], present[i] = is_count[i] and count_of(old[i]) or old[i], old[i]
  end
end

for run = 1, #runs - 1, 2 do
  local hits, times = runs[run], runs[run + 1]
  local fit, own, states, lives = times, {}, {}, {}
  for i, key in ipairs(KEYS) do
    if logs[i] then
      logs[i].runs = { hits, times }
      local _, _, fits = ask_log(key, logs[i], true)
      own[i] = fits
    else
      local state, lasts, _, fits = asks[i](present[i], { hits, times })
      own[i], states[i], lives[i] = fits, state, lasts
    end
    fit = math.min(fit, own[i])
  end
  for i, key in ipairs(KEYS) do
    if logs[i] then
      local of_run = ask_log(key, logs[i], false, fit)
      table.insert(told[i], of_run[2])
      table.insert(told[i], of_run[3])
    else
      if own[i] > fit then
        states[i], lives[i] = asks[i](present[i], { hits, fit })
      end
      if states[i] then
        -- A state that lives long enough is told without its end.
        local rest = not is_count[i] and present[i] and present[i]:sub(#states[i] + 1) or ''
        present[i], seconds[i] = states[i] .. rest, lives[i] or seconds[i]
      end
    end
  end
end

for i, key in ipairs(KEYS) do
  if logs[i] or present[i] == old[i] then
    -- Logs are kept as they are asked.
  elseif is_count[i] then
    keep_count(key, old[i], present[i], seconds[i])
  else
    keep(key, old[i], present[i], seconds[i])
  end
end
told[#KEYS + 1], told[#KEYS + 2] = now[1], now[2]
return told
