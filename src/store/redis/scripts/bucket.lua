-- Buckets. A state tells when the bucket will be full, as a second and the ticks behind it, so that no number
-- is rounded; and the second until which its key lives at least.
function algorithms.b(asked)
  local slack, per_second, per_hit, burst, at = unpacked('<xI4I8I8I8', asked)
  local asked_runs = runs_from(asked, at)
  local depth, tick = burst * per_hit, micros * per_second / 1000000
  tick = tick - tick % 1

  return function(state, runs)
    runs = runs or asked_runs
    local told, lives = 0, 0
    if state then
      if #state ~= 19 then
        return false
      end
      local full_second, full_tick
      full_second, full_tick, lives = unpacked('<I7I5I7', state)
      told = (full_second - second) * per_second + (full_tick - tick)
      if told < 0 then
        told = 0
      end
    end
    local missing, changed, admitted, times = told, false, true, 0
    if told > depth + per_second then
      -- It was told before the clock was set back.
      missing, changed = depth, true
    end
    for i = 1, #runs - 1, 2 do
      local hits = runs[i]
      times = runs[i + 1]
      if hits < 0 then
        changed = changed or missing > 0
        missing = math.max(missing + hits * times * per_hit, 0)
      elseif hits > 0 then
        local fit = (depth - missing) / per_hit
        fit = (fit - fit % 1) / hits
        if fit < times then
          times, admitted = math.max(fit - fit % 1, 0), false
        end
        changed = changed or times > 0
        missing = missing + times * hits * per_hit
      end
    end
    if not changed then
      return nil, nil, admitted, times
    end
    local full = tick + missing
    local seconds = full / per_second
    seconds = seconds - seconds % 1
    state = pack('<I7I5', second + seconds, full - seconds * per_second)
    -- To the next whole second, and as long as time may stand still.
    seconds = seconds + 2
    if second + seconds <= lives then
      return state, nil, admitted, times
    end
    seconds = seconds + slack
    return state .. pack('<I7', second + seconds), seconds, admitted, times
  end
end
