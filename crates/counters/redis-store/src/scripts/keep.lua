-- Stores a new state, whose key need not expire later than now without `seconds`. FOREIGN if the key has a value of
-- another type, which MGET reads as none.
local function keep(key, old, state, seconds)
  if not seconds then
    call('SETRANGE', key, '0', state)
  elseif old then
    call('SETEX', key, whole(seconds), state)
  elseif not call('SET', key, state, 'EX', whole(seconds), 'NX') then
    return FOREIGN
  end
end
