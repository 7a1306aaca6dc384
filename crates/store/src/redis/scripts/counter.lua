-- Fixed windows among limits of other kinds. A state is the count; the key contains the window.
local function count_of(state)
  if state and not string.find(state, '^-?%d+$') then
    return nil
  end
  -- At most the largest count that a double has exactly.
  return math.max(math.min(tonumber(state or '0'), 9007199254740992), 0)
end

function algorithms.c(argument)
  local seconds, limit = unpacked('<xI4I8', argument)

  return function(state, runs)
    local count = count_of(state)
    if not count then
      return false
    end
    local hits, times = runs[1], runs[2]
    local fit = times
    if hits > 0 then
      fit = (limit - count) / hits
      fit = math.min(math.max(fit - fit % 1, 0), times)
    end
    local after = math.max(count + hits * fit, 0)
    if after == count then
      return nil, nil, fit == times, fit
    end
    return string.format('%.0f', after), seconds, fit == times, fit
  end
end

-- Stores a count by its difference to the old one.
local function keep_count(key, old, state, seconds)
  if old then
    call('INCRBY', key, string.format('%.0f', tonumber(state) - count_of(old)))
  else
    call('SET', key, state, 'EX', seconds)
  end
end
