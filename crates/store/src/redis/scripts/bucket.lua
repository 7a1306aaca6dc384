-- Buckets. A state has the time at which the bucket is full, as a second and ticks, so that no number is rounded; and a
-- second before which its key does not expire.
function algorithms.b(argument)
  local jitter, per_second, per_hit, burst, at = unpacked('<xI4I8I8I8', argument)
  local own_runs = runs_from(argument, at)
  local depth, tick = burst * per_hit, micros * per_second / 1000000
  tick = tick - tick % 1

  return function(state, runs)
    runs = runs or own_runs
    local stored, expires = 0, 0
    if state then
      if #state ~= 19 then
        return false
      end
      local full_second, full_tick
      full_second, full_tick, expires = unpacked('<I7I5I7', state)
      stored = (full_second - second) * per_second + (full_tick - tick)
      if stored < 0 then
        stored = 0
      end
    end
    local used, changed, admitted, times = stored, false, true, 0
    if stored > depth + per_second then
      -- It was stored before the clock was set back.
      used, changed = depth, true
    end
    for i = 1, #runs - 1, 2 do
      local hits = runs[i]
      times = runs[i + 1]
      if hits < 0 then
        changed = changed or used > 0
        used = math.max(used + hits * times * per_hit, 0)
      elseif hits > 0 then
        local fit = (depth - used) / per_hit
        fit = (fit - fit % 1) / hits
        if fit < times then
          times, admitted = math.max(fit - fit % 1, 0), false
        end
        changed = changed or times > 0
        used = used + times * hits * per_hit
      end
    end
    if not changed then
      return nil, nil, admitted, times
    end
    local full = tick + used
    local seconds = full / per_second
    seconds = seconds - seconds % 1
    state = pack('<I7I5', second + seconds, full - seconds * per_second)
    -- Rounded up to a second, and one more because time may stand still after the clock was set back.
    seconds = seconds + 2
    if second + seconds <= expires then
      return state, nil, admitted, times
    end
    seconds = seconds + jitter
    return state .. pack('<I7', second + seconds), seconds, admitted, times
  end
end
