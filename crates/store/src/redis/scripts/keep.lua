-- Functions by the letter of an argument. Each takes a state, or nil if there is none, and runs, by default those of the
-- argument. It returns the new state if it changes, the key's expiry in seconds if it must be set, whether all was
-- admitted, and how many callers of the last run were; `false` for an invalid state.
local algorithms = {}

-- Stores a new state. Returns false if the key has a foreign value.
local function keep(key, old, state, seconds)
  if not state then
    return state == nil
  elseif not seconds then
    call('SETRANGE', key, '0', state)
  elseif old then
    call('SETEX', key, whole(seconds), state)
  else
    -- The key may have a value of another type.
    return call('SET', key, state, 'EX', whole(seconds), 'NX')
  end
  return true
end
