-- What makes of a state, none where there is none, what it becomes if it changes, for how long its key is to
-- live if that is longer than it does, whether all was admitted, and how many callers of the last run were; and
-- `false` of what is no state. By the letter of what is asked. It takes the runs that were asked, or others.
local algorithms = {}

-- Keeps what a state has become, and tells whether there was one at all.
local function keep(key, old, state, seconds)
  if not state then
    return state == nil
  elseif not seconds then
    call('SETRANGE', key, '0', state)
  elseif old then
    call('SETEX', key, whole(seconds), state)
  else
    -- Where there is no text there may still be something else.
    return call('SET', key, state, 'EX', whole(seconds), 'NX')
  end
  return true
end
