-- Counts units, with an argument for each key. If ARGV[1] begins with `g`, they are guarded: if the request is refused,
-- only those of units of one key that are over count, and the others read. A refund is within every limit, and counts. What
-- it means for the request that a key is over follows as a number for each: 0 refuses it, and the keys with the same even
-- number above 2 are of one candidate; it is refused if all candidates are over. Any other number means nothing. Returns then
-- also a list that has for each key 1 if it was over, else 0, and the same of the request.
local is_guarded, is_refused = string.sub(ARGV[1], 1, 1) == 'g', false
local states, expiries, fits, over = {}, {}, {}, {}

-- The state of a key, or an error.
local function load(key, limit)
  if limit.load then
    return limit.load(key)
  end
  local value = pcall('GET', key)
  if type(value) == 'table' then
    return value
  elseif limit.letter ~= 'c' then
    return value and #value ~= limit.size and FOREIGN or value
  elseif value and not string.find(value, '^-?%d+$') then
    return { err = 'ERR value is not an integer or out of range' }
  end
  return value and max(min(tonumber(value), MOST), 0) or 0
end

local function save(key, limit, old, state, expiry)
  if limit.letter ~= 'c' then
    keep(key, old, state, expiry)
  elseif old > 0 or not call('SET', key, whole(state), 'EX', whole(limit.seconds), 'NX') then
    -- Before anything is counted, in case that it is denied.
    if limit.may_expire and call('TTL', key) < limit.seconds then
      call('EXPIRE', key, whole(limit.seconds))
    end
    if old == MOST then
      -- The counter may be larger, and is what callers are told from now on.
      call('INCRBY', key, '-' .. call('GET', key))
      old = 0
    end
    call('INCRBY', key, whole(state - old))
  end
end

-- Nothing is changed before all states are known to be valid.
for i, key in ipairs(KEYS) do
  local limit, state = limits[i], load(key, limits[i])
  if type(state) == 'table' and state.err then
    return state
  end
  replies[i], states[i] = state, state
  if is_guarded then
    over[i] = limit.runs[1] >= 0 and limit.apply(state, limit.runs[1], 1) < 1 and 1 or 0
  end
end

if is_guarded then
  local exhausted, i = {}, 0
  for digits in string.gmatch(ARGV[1], '%d+') do
    local code = tonumber(digits)
    i = i + 1
    if code == 0 then
      is_refused = is_refused or over[i] == 1
    elseif code > 2 and code % 2 == 0 then
      exhausted[code] = exhausted[code] or over[i] == 1
    end
  end
  local are_all = next(exhausted) ~= nil
  for _, is_exhausted in pairs(exhausted) do
    are_all = are_all and is_exhausted
  end
  is_refused = is_refused or are_all
end

local first = 1
while first <= #KEYS do
  local last, unit, runs = first, limits[first].unit, limits[first].runs
  while unit == 'f' and last < #KEYS and limits[last + 1].unit == 'n' do
    last = last + 1
  end
  local is_barred = is_refused and (unit == 'f' or over[first] == 0)
  for i = first, is_guarded and last or 0 do
    -- A key may occur twice.
    replies[i] = load(KEYS[i], limits[i])
    states[i] = replies[i]
  end
  for run = 1, #runs, 2 do
    local hits, times = runs[run], runs[run + 1]
    local fit = is_barred and hits > 0 and 0 or times
    for i = first, last do
      local limit = limits[i]
      fits[i] = limit.apply(states[i], hits, times)
      if hits > 0 and fits[i] < fit and (unit == 'f' or limit.letter ~= 'c') then
        fit = fits[i]
      end
    end
    for i = first, last do
      local limit = limits[i]
      if limit.add then
        limit.add(hits, times, fit, fits[i])
      else
        local _, state, expiry = limit.apply(states[i], hits, fit)
        states[i], expiries[i] = state or states[i], expiry or expiries[i]
      end
    end
  end
  for i = first, last do
    if states[i] ~= replies[i] then
      save(KEYS[i], limits[i], replies[i], states[i], expiries[i])
    end
  end
  first = last + 1
end
if is_guarded then
  over[#KEYS + 1] = is_refused and 1 or 0
  replies[#KEYS + 1] = over
end
if second then
  replies[#replies + 1], replies[#replies + 2] = whole(second), whole(micros)
end
return replies
