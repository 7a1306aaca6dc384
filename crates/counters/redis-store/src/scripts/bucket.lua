-- Buckets. A state has the time at which the bucket is full, as a second and ticks, so that no number is rounded; and a
-- second before which its key does not expire.
function algorithms.b(jitter, per_second, per_hit, burst)
  local depth, tick = burst * per_hit, micros * per_second / 1000000
  tick = tick - tick % 1

  return function(state, hits, times)
    local used, expires, changed = 0, 0, false
    if state then
      local full_second, full_tick
      full_second, full_tick, expires = unpacked('<I7I5I7', state)
      used = (full_second - second) * per_second + (full_tick - tick)
      if used > depth + per_second then
        -- It was stored before the clock was set back.
        used, changed = depth, true
      elseif used < 0 then
        used = 0
      end
    end
    if hits > 0 then
      local fit = (depth - used) / per_hit
      fit = (fit - fit % 1) / hits
      if fit < times then
        times = max(fit - fit % 1, 0)
      end
      changed = changed or times > 0
      used = used + times * hits * per_hit
    elseif hits < 0 then
      changed = changed or times > 0 and used > 0
      used = max(used + hits * times * per_hit, 0)
    end
    if not changed then
      return times
    end
    local full = tick + used
    local seconds = full / per_second
    seconds = seconds - seconds % 1
    local full_second = second + seconds
    -- Rounded up to a second, and one more because time may stand still after the clock was set back.
    if full_second + 2 <= expires then
      return times, pack('<I7I5I7', full_second, full - seconds * per_second, expires)
    end
    expires = full_second + 2 + jitter
    return times, pack('<I7I5I7', full_second, full - seconds * per_second, expires), expires - second
  end, 19
end
