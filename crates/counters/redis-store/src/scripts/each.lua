-- Counts each key alone, by the argument whose index is the key's byte of ARGV[1].
local indexes = { ARGV[1]:byte(1, -1) }
if limits[1].size then
  -- It reads a value of another type as none, which `keep` notices.
  replies = call('MGET', unpack(KEYS))
end
for i, key in ipairs(KEYS) do
  local limit, old = limits[indexes[i]], replies[i]
  local apply, runs, state, seconds = limit.apply, limit.runs, old, nil
  if limit.load then
    state = limit.load(key)
    replies[i] = state
    for run = 1, state.err and 0 or #runs, 2 do
      local own = apply(state, runs[run], runs[run + 1])
      limit.add(runs[run], runs[run + 1], min(own, runs[run + 1]), own)
    end
  elseif old and #old ~= limit.size then
    replies[i] = FOREIGN
  else
    for run = 1, #runs, 2 do
      local _, new, expiry = apply(state, runs[run], runs[run + 1])
      state, seconds = new or state, expiry or seconds
    end
    if state ~= old then
      replies[i] = keep(key, old, state, seconds) or old
    end
  end
end
replies[#KEYS + 1], replies[#KEYS + 2] = whole(second), whole(micros)
return replies
