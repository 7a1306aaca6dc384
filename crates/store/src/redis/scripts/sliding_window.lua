-- Sliding windows. A state has the second at which the current window began, its hits, and those of the previous
-- window.
function algorithms.w(argument)
  local jitter, limit, length, _, at = unpacked('<xI4I8I8I8', argument)
  local own_runs = runs_from(argument, at)
  local start = second - second % length

  return function(state, runs)
    runs = runs or own_runs
    local began, this, last, kept = start, 0, 0, nil
    local changed, admitted, times = false, true, 0
    if state then
      if #state ~= 13 then
        return false
      end
      began, this, last = unpacked('<I5I4I4', state)
      kept = began
      if began > second + 1 then
        -- It was stored before the clock was set back.
        began, changed = start, true
      elseif began < start then
        last = began + length >= start and this or 0
        began, this = start, 0
      end
    end
    -- The share of the last window that counts, in millionths; all of it if this window begins in the future.
    local overlap = ((second - began) * 1000000 + micros) / length
    overlap = math.min(1000000 - (overlap - overlap % 1), 1000000)
    for i = 1, #runs - 1, 2 do
      local hits = runs[i]
      times = runs[i + 1]
      if hits < 0 then
        changed = changed or this + last > 0
        last = math.max(last - math.max(-hits * times - this, 0), 0)
        this = math.max(this + hits * times, 0)
      elseif hits > 0 then
        local counted = last * overlap / 1000000
        local fit = (limit - this - (counted - counted % 1)) / hits
        if fit < times then
          times, admitted = math.max(fit - fit % 1, 0), false
        end
        changed = changed or times > 0
        this = this + times * hits
      end
    end
    if not changed then
      return nil, nil, admitted, times
    end
    state = pack('<I5I4I4', began, this, last)
    if began == kept then
      return state, nil, admitted, times
    end
    return state, began + 2 * length - second + 1 + jitter, admitted, times
  end
end
