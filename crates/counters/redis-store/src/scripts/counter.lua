-- Fixed windows. A state is the count; the key contains the window. A larger count than this is over every limit, and a
-- double has all up to it exactly.
local MOST = 9007199254740992

function algorithms.c(_, limit, _, _, is_alone)
  return function(count, hits, times)
    if hits <= 0 or is_alone then
      -- Rejected hits of a key alone are counted too.
      local after = max(min(count + hits * times, MOST), 0)
      return after > limit and 0 or times, after
    end
    local fit = (limit - count) / hits
    if fit < times then
      times = max(fit - fit % 1, 0)
    end
    return times, count + hits * times
  end
end
