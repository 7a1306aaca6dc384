-- Sliding windows. A state has the second at which the current window began, its hits, and those of the previous
-- window.
function algorithms.w(jitter, limit, length)
  local start = second - second % length

  return function(state, hits, times)
    local began, this, last, kept = start, 0, 0, nil
    local changed = false
    if state then
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
    if hits > 0 then
      -- The share of the last window that counts, in millionths; all of it if this window begins in the future.
      local overlap = ((second - began) * 1000000 + micros) / length
      overlap = min(1000000 - (overlap - overlap % 1), 1000000)
      local counted = last * overlap / 1000000
      local fit = (limit - this - (counted - counted % 1)) / hits
      if fit < times then
        times = max(fit - fit % 1, 0)
      end
      changed = changed or times > 0
      this = this + times * hits
    elseif hits < 0 then
      -- A refund of 0 hits has no callers.
      changed = changed or times > 0 and this + last > 0
      last = max(last - max(-hits * times - this, 0), 0)
      this = max(this + hits * times, 0)
    end
    if not changed then
      return times
    end
    return times, pack('<I5I4I4', began, this, last), began ~= kept and began + 2 * length - second + 1 + jitter or nil
  end, 13
end
