-- Fixed windows among limits of other kinds. A state is the count, which the key tells the window of.
local function count_of(state)
  if state and not string.find(state, '^-?%d+$') then
    return nil
  end
  -- No more than a double counts exactly.
  return math.max(math.min(tonumber(state or '0'), 9007199254740992), 0)
end

function algorithms.c(asked)
  local seconds, limit = unpacked('<xI4I8', asked)

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

-- Keeps a count, which may have changed since it was another's.
local function keep_count(key, old, state, seconds)
  if old then
    call('INCRBY', key, string.format('%.0f', tonumber(state) - count_of(old)))
  else
    call('SET', key, state, 'EX', seconds)
  end
end
